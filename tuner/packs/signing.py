"""Ed25519 signatures: the service signs the `SHA256SUMS` of a pack, and everything that is downloaded by digest.
Clients with a pinned public key verify them.

A signature file is one line: ``ed25519``, the public key and the signature, both hexadecimal. The library
`cryptography` comes with the extras `server` and `verify`, and is imported only when it is used.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput, StoreError, TunerError
from tuner.versions import install_command

#: The private key's file in the data folder: 32 bytes, hexadecimal, readable only by its owner.
KEY_FILE = "signing_key"
_LINE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_KEY = re.compile(r"[0-9a-f]{64}")


class SigningUnavailable(StoreError):
    """The library that signs and verifies is not installed, or the key cannot be used; the message has the reason."""


class WrongSignature(TunerError):
    """A signature is missing, wrong, or made with a different key."""


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A service's key."""

    #: 32 bytes.
    private: bytes

    @property
    def public(self) -> str:
        """The form in which clients pin it: 64 hexadecimal digits."""
        return str(self._loaded().public_key().public_bytes_raw().hex())

    def sign(self, data: bytes) -> bytes:
        """The signature file of `data`."""
        return f"ed25519 {self.public} {self._loaded().sign(data).hex()}\n".encode()

    def _loaded(self) -> Any:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(self.private)


def signing_key(folder: Path) -> SigningKey:
    """The key in a data folder; created if there is none.

    Raises:
        SigningUnavailable: the file is not a key, others may read it, or the folder cannot be written.
    """
    path = folder / KEY_FILE
    try:
        if not path.exists():
            return rotate(folder)
        mode = path.stat().st_mode & 0o777
        text = path.read_text().strip()
    except OSError as error:
        raise SigningUnavailable(f"{path} cannot be used: {error.strerror}") from error
    if mode & 0o077:
        raise SigningUnavailable(f"{path} can be read by others (mode {mode:04o}); run: tuner key rotate")
    if not _KEY.fullmatch(text):
        raise SigningUnavailable(f"{path} is not a signing key; run: tuner key rotate")
    return SigningKey(private=bytes.fromhex(text))


def rotate(folder: Path) -> SigningKey:
    """Replaces the key in a data folder with a new one, atomically. Signatures of the old one do not change.

    Raises:
        SigningUnavailable: the folder cannot be written.
    """
    key = SigningKey(private=_ed25519().Ed25519PrivateKey.generate().private_bytes_raw())
    path = folder / KEY_FILE
    fresh = path.with_name(f".{KEY_FILE}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.private.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SigningUnavailable(f"{path} cannot be written: {error.strerror}") from error
    return key


def check_key(text: str) -> str:
    """Checks a public key, and returns it in the form in which it is pinned.

    Raises:
        InvalidInput: it is not a key.
    """
    if not _KEY.fullmatch(text):
        raise InvalidInput(
            "key", f"{text[:80]!r} is not a public key", "use 64 hexadecimal digits, as printed by `tuner key show`"
        )
    return text


def signer(signature: bytes) -> str | None:
    """The public key that a signature file names; None if there is no signature."""
    found = _LINE.fullmatch(signature)
    return found[1].decode() if found else None


def verify(data: bytes, signature: bytes, key: str) -> None:
    """Checks that `key` signed `data`.

    Raises:
        WrongSignature: it did not sign these bytes.
        SigningUnavailable: the library is not installed.
    """
    found = _LINE.fullmatch(signature)
    if found is None:
        raise WrongSignature("it is not signed" if not signature else "its signature has an unknown form")
    if found[1].decode() != key:
        raise WrongSignature(f"it is signed by {found[1].decode()}, but {key} is pinned")
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(found[2].decode()), data)
    except InvalidSignature as error:
        raise WrongSignature(f"the signature of {key} does not match: the bytes were changed") from error


def _ed25519() -> Any:
    """The library, which may not be installed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SigningUnavailable(f"cryptography is not installed; run: {install_command('verify')}") from error
    return ed25519
