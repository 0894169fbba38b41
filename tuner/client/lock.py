"""A lock file: which packs a build uses, byte for byte, whose signature they bear, and how they were asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self

from tuner.client.errors import Incompatible, NoResult, Refused
from tuner.client.files import write_atomically

#: It grows when a field goes or changes its meaning.
LOCK_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LockedPack:
    """One pack."""

    #: Where it goes, below the folder that is fetched into.
    path: str
    #: Of its bytes, hexadecimal.
    sha256: str
    size_bytes: int
    #: The body of `POST /packs` that made it, by which it is asked for again.
    order: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What a build uses."""

    #: The public key that signs the packs, hexadecimal; None where nobody's signature is asked for.
    key: str | None
    packs: tuple[LockedPack, ...] = ()

    def with_pack(self, pack: LockedPack) -> Self:
        """The same with that pack in the place of the one at its path."""
        others = [one for one in self.packs if one.path != pack.path]
        return replace(self, packs=tuple(sorted([*others, pack], key=lambda one: one.path)))

    def to_bytes(self) -> bytes:
        """The file: the same lock gives the same bytes. `sum` is of all that is before it."""
        body = {"format": LOCK_FORMAT, "key": self.key, "packs": [asdict(pack) for pack in self.packs]}
        return (json.dumps({**body, "sum": _sum(body)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Inverse of `to_bytes`.

        Raises:
            Refused: a byte differs from what was written.
            Incompatible: a newer client wrote it.
        """
        try:
            body = json.loads(content)
            if body.pop("sum") != _sum(body):
                raise Refused("the lock file is not as it was written; restore it, or make it anew by `pack --lock`")
            if body["format"] > LOCK_FORMAT:
                known = f"and this client reads formats up to {LOCK_FORMAT}; install a newer client"
                raise Incompatible(f"the lock is of format {body['format']}, {known}")
            lock = cls(key=body["key"], packs=tuple(LockedPack(**pack) for pack in body["packs"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("the file is no lock file; restore it, or make it anew by `pack --lock`") from error
        if lock.to_bytes() != content:
            raise Refused("the lock file is not as it was written; restore it, or make it anew by `pack --lock`")
        return lock


def read_lock(path: Path) -> Lock:
    """The lock in a file.

    Raises:
        NoResult: there is none.
        Refused: it is not as it was written.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NoResult(f"there is no lock file {path}; `pack --lock` makes one") from error
    except OSError as error:
        raise NoResult(f"{path} cannot be read: {error.strerror}") from error
    return Lock.from_bytes(content)


def write_lock(path: Path, lock: Lock) -> bool:
    """Writes it, whole or not at all; whether anything changed."""
    return write_atomically(path, lock.to_bytes())


def place_of(folder: Path, pack: LockedPack) -> Path:
    """Where a pack goes.

    Raises:
        Refused: outside of the folder.
    """
    parts = PurePosixPath(pack.path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise Refused(f"the lock wants to write {pack.path!r}, which lies outside of {folder}")
    return folder / parts


class Cache:
    """Packs by their sha256, in a folder that several builds may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sha256: str) -> Path:
        """Where the pack of a digest lies."""
        return self._folder / sha256[:2] / sha256

    def get(self, sha256: str) -> bytes | None:
        """The bytes of a digest; None where they are not there.

        Raises:
            Refused: what is there has another digest.
        """
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NoResult(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Refused(f"{path} is not what its name says: its bytes were changed; remove it and fetch again")
        return content

    def put(self, sha256: str, content: bytes) -> None:
        """Keeps bytes under their digest."""
        write_atomically(self.path(sha256), content)


def _sum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
