"""Writing results: atomically, only if something changed, and only at the given path."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from tuner.client.errors import Refused


def write_atomically(path: Path, content: bytes) -> bool:
    """Writes `content` to `path` atomically; an unchanged file is left alone. Returns whether anything was written.

    A link is kept, and its target is written. A device or pipe is kept, and receives the content.

    Raises:
        OSError: the folder cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            device.write(content)
        return True
    if path.is_symlink():
        path = path.resolve()
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic only within a file system.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return True


def _umask() -> int:
    """The process' umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Excludes other processes of this program while a file is read, changed and written, so that no change is lost.
    The folder is locked, so no lock file remains."""
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # reported by the later write
        yield
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def place_below(folder: Path, name: str) -> Path:
    """The path for a file whose name comes from outside.

    Raises:
        Refused: it would be outside the folder, by its name or through a link.
    """
    parts = PurePosixPath(name)
    outside = Refused(f"{name!a} lies outside of {folder}; nothing was written")
    if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise outside
    place = folder / parts
    try:
        leads_to, inside = place.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # a cycle of links
        raise outside from error
    if not leads_to.is_relative_to(inside) or leads_to == inside:
        raise outside
    return place


def check_places(places: Collection[Path]) -> None:
    """Checks that all files can be written, before writing the first.

    Raises:
        Refused: two paths are the same, or one needs another as its folder.
        OSError: one is a folder, or its folder is not a folder, or cannot be written.
    """
    resolved = [place.resolve() for place in places]
    taken = set(resolved)
    for place, target in zip(places, resolved, strict=True):
        if resolved.count(target) > 1:
            raise Refused(f"two files would be written to {place}; nothing was written")
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
        for above in target.parents:
            if above in taken:
                raise Refused(f"{place} is to be written, but {above} is also one of the files; nothing was written")
            if above.exists() and not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
            if above.exists():
                if not os.access(above, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
                break
