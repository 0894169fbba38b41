"""The data directory: on a local disk, and used by one server at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from pathlib import Path

from tuner.errors import StoreError
from tuner.private import FILE_MODE, close_to_others, make_private_folder

_log = logging.getLogger(__name__)

#: The SQLite database in the data directory.
DATABASE_FILE = "tuner.db"
#: Names that an earlier version may have left readable to others: of files and of folders in the data directory.
_ONCE_OPEN = (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", "lock", "artifacts", "backups", "build")

#: File systems whose locks or shared memory do not work across machines, as SQLite's WAL requires.
_NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2"}
    | {f"fuse.{kind}" for kind in ("sshfs", "glusterfs", "ceph", "s3fs", "rclone", "gcsfuse", "juicefs", "davfs2")}
)


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Mount point and file-system type of `path`, read from the text of ``/proc/mounts``."""
    found = ("/", "unknown")
    for line in filter(None, mounts.split("\n")):  # a name may contain other separators
        point, kind = line.split(" ")[1:3]
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        # A later mount hides an earlier one at the same point.
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found


def make_folder(directory: Path, *, holds_database: bool) -> None:
    """Creates the data directory if missing, and makes it private if this user owns it.

    Raises:
        StoreError: the directory cannot be created, or its database would be on a network mount.
    """
    try:
        make_private_folder(directory)
        is_open = close_to_others(directory)
        for path in filter(Path.exists, (directory / name for name in _ONCE_OPEN)):
            close_to_others(path)
    except OSError as error:
        raise StoreError(f"{directory} cannot be created: {error.strerror}; pass another --data") from error
    if is_open:
        _log.warning(
            "%s belongs to another user, and others may read it; its owner can restrict it: chmod 700", directory
        )
    if holds_database:
        check_local(directory)


def check_local(path: Path, mounts: str | None = None) -> None:
    """Refuses a network mount.

    Raises:
        StoreError: `path` is on a network mount.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="surrogateescape")
        except OSError:  # not Linux, so there is nothing to check
            return
    point, kind = mount_of(path.resolve(), mounts)
    if kind in _NETWORK_KINDS:
        raise StoreError(
            f"{path} is on a network mount ({kind} at {point}), where SQLite can lose data; pass a directory on a "
            "local disk as --data, or a PostgreSQL URL as --database-url"
        )


def _lock_path(directory: Path) -> Path:
    return directory / "lock"


def sign_of_life(directory: Path) -> tuple[str, int]:
    """Process id of the server that last took the lock, and the time of its last heartbeat by the folder's clock,
    nanoseconds. Only changes of the time matter."""
    path = _lock_path(directory)
    try:
        return path.read_text(errors="replace").strip()[:32] or "unknown", path.stat().st_mtime_ns
    except OSError:
        return "unknown", 0


class DirectoryLock:
    """Held while a server uses the directory; the kernel releases it when the process ends."""

    def __init__(self, directory: Path) -> None:
        """Takes the lock.

        Raises:
            StoreError: another process (see the message) holds it, or the folder cannot be written.
        """
        path = _lock_path(directory)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StoreError(
                f"{directory} cannot be written: {error.strerror}; let this user write there, or pass another --data"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode().strip() or "unknown"
            os.close(self._file)
            raise StoreError(
                f"{directory} is in use by another server (pid {holder}); stop that one, or pass another --data"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def beat(self) -> None:
        """Updates the heartbeat that `sign_of_life` reads."""
        os.utime(self._file)

    def release(self) -> None:
        """Releases the lock for another server; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
