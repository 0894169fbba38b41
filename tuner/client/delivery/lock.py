"""A lock file: the exact packs of a build, their required signature, and the requests that made them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import click

from tuner.client.delivery.files import alone_with, write_atomically
from tuner.client.errors import Incompatible, NoResult, Refused
from tuner.core.json_names import each_once

#: It is increased when a field is removed or changes its meaning.
LOCK_FORMAT = 1
#: Characters of a wrong value that a message shows.
_MAX_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class LockedPack:
    """One pack."""

    #: Its path below the target folder.
    path: str
    #: SHA-256 of its bytes, hexadecimal.
    sha256: str
    size_bytes: int
    #: The body of `POST /packs` that made it, for requesting it again.
    order: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What a build uses."""

    #: The public key that signs the packs, hexadecimal; None if no signature is required.
    key: str | None
    packs: tuple[LockedPack, ...] = ()

    def with_pack(self, pack: LockedPack) -> Self:
        """A copy with that pack instead of the one at its path."""
        others = [one for one in self.packs if one.path != pack.path]
        return replace(self, packs=tuple(sorted([*others, pack], key=lambda one: one.path)))

    def to_bytes(self) -> bytes:
        """The file's content: the same lock gives the same bytes. `sum` covers everything before it."""
        body = {"format": LOCK_FORMAT, "key": self.key, "packs": [asdict(pack) for pack in self.packs]}
        return (json.dumps({**body, "sum": _sum(body)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "the file") -> Self:
        """Inverse of `to_bytes`; `name` is the file's, for error messages.

        Raises:
            Refused: it is not a lock, or it was modified.
            Incompatible: a newer client wrote it.
        """
        try:
            # Compared as text: git may have changed its line ends, and an editor may have added a byte-order mark.
            body = json.loads(content.decode("utf-8-sig"), object_pairs_hook=each_once)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Refused(f"{name} is not a lock file; {_REMEDY}")
        is_whole = body.pop("sum", None) == _sum(body)
        if is_whole and type(body.get("format")) is int and body["format"] > LOCK_FORMAT:
            known = f"but this client reads formats up to {LOCK_FORMAT}; install a newer client"
            raise Incompatible(f"{name} is of format {body['format']}, {known}")
        _check(body, _LOCK, name)
        for number, pack in enumerate(body["packs"]):
            _check(pack, _PACK, name, f"packs.{number}.")
        lock = cls(key=body["key"], packs=tuple(LockedPack(**pack) for pack in body["packs"]))
        if not is_whole:
            raise Refused(f"{name} has been modified since it was written; {_REMEDY}")
        return lock


_REMEDY = "restore it, or create it again with `pack --lock`"
_Check = Callable[[Any], bool]


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


#: The keys of a lock and of each of its packs, each with a check and a description.
_LOCK: Mapping[str, tuple[_Check, str]] = {
    "format": (lambda value: type(value) is int and value == LOCK_FORMAT, str(LOCK_FORMAT)),
    "key": (lambda value: value is None or _is_sha256(value), "null or 64 hexadecimal digits"),
    "packs": (
        lambda value: isinstance(value, list) and all(isinstance(pack, dict) for pack in value),
        "a list of objects",
    ),
}
_PACK: Mapping[str, tuple[_Check, str]] = {
    "path": (lambda value: isinstance(value, str) and value.isprintable() and value != "", "the path of a file"),
    "sha256": (_is_sha256, "64 hexadecimal digits"),
    "size_bytes": (lambda value: type(value) is int and value >= 0, "a number of bytes"),
    "order": (lambda value: isinstance(value, dict), "an object, the body of `POST /packs`"),
}


def _check(found: Mapping[str, Any], expected: Mapping[str, tuple[_Check, str]], name: str, where: str = "") -> None:
    for key, (is_right, words) in expected.items():
        if key not in found:
            raise Refused(f"{name} is not a lock file: {where}{key} is missing, which must be {words}; {_REMEDY}")
        if not is_right(found[key]):
            got = ascii(found[key])
            shown = got if len(got) <= _MAX_SHOWN else f"{got[:_MAX_SHOWN]}..."
            raise Refused(f"{name} is not a lock file: {where}{key} must be {words}, got {shown}; {_REMEDY}")
    if unknown := sorted(found.keys() - expected.keys()):
        raise Refused(f"{name} is not a lock file: {where}{unknown[0]!a} is not a known key; {_REMEDY}")


def read_lock(path: Path) -> Lock:
    """The lock in a file.

    Raises:
        NoResult: there is no such file.
        Refused: it was modified after it was written.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NoResult(f"there is no lock file {path}; `pack --lock` creates one") from error
    except OSError as error:
        raise NoResult(f"{path} cannot be read: {error.strerror}") from error
    return Lock.from_bytes(content, str(path))


def write_lock(path: Path, lock: Lock) -> bool:
    """Writes it atomically; returns whether anything changed."""
    return write_atomically(path, lock.to_bytes())


def change_lock(path: Path, change: Callable[[Lock | None], Lock]) -> bool:
    """Reads a lock, changes it, and writes it, without other writers; returns whether anything changed.

    Args:
        path: the lock file.
        change: takes the existing lock, or None, and returns the new one.

    Raises:
        Refused: the existing file is not a lock, or `change` refuses it.
        NoResult: it cannot be read or written.
    """
    with alone_with(path):
        found = read_lock(path) if path.exists() else None
        try:
            return write_lock(path, change(found))
        except OSError as error:
            raise NoResult(f"{path} cannot be written: {error.strerror}") from error


def default_cache() -> Path:
    """The default folder for packs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tuner" / "packs"


class Cache:
    """Packs by their sha256, in a folder that several builds may share.

    Args:
        folder: given by the user; None for the default one. If the default one cannot be used, downloads
            still work, and a line on stderr reports it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._is_default = folder or default_cache(), folder is None

    def path(self, sha256: str) -> Path:
        """The path of the pack with a digest."""
        return self._folder / sha256[:2] / sha256

    def get(self, sha256: str) -> bytes | None:
        """The bytes with a digest; None if missing.

        Raises:
            Refused: the file has a different digest.
            NoResult: the folder, given by the user, cannot be read.
        """
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unusable(f"{path} cannot be read: {error.strerror}", error)
            return None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Refused(f"{path} does not match its digest: it was modified; remove it and fetch again")
        return content

    def put(self, sha256: str, content: bytes) -> None:
        """Stores bytes under their digest.

        Raises:
            NoResult: the folder, given by the user, cannot be written.
        """
        path = self.path(sha256)
        try:
            write_atomically(path, content)
        except OSError as error:
            self._unusable(f"{path} cannot be written: {error.strerror}", error)

    def _unusable(self, problem: str, error: OSError) -> None:
        if not self._is_default:
            raise NoResult(f"{problem}; choose another folder with --cache") from error
        click.echo(f"tuner-client: {problem}; nothing was stored there (--cache chooses another folder)", err=True)


def _sum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
