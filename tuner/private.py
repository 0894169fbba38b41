"""Folders and files that only their owner can access: other users of a machine must not read a data folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077


def make_private_folder(path: Path) -> None:
    """Creates a folder and its missing parents, each accessible only to its owner; an existing one is not changed.

    Raises:
        OSError: the folder cannot be created, or the path is not a folder.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Creates an empty file that only its owner can access; an existing one is not changed, and not even opened:
    closing a descriptor of a database releases all locks of this process on it, and then another process may delete its
    log.

    Source: https://www.sqlite.org/howtocorrupt.html, 2.2.

    Raises:
        OSError: the file cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def close_to_others(path: Path) -> bool:
    """Removes all access to a folder or file except its owner's; returns whether others still have access because it
    belongs to another user.
    """
    found = path.stat()
    if not found.st_mode & _OTHERS:
        return False
    if found.st_uid != os.geteuid():
        return True
    path.chmod(found.st_mode & ~_OTHERS & 0o777)
    return False


@contextmanager
def private_files() -> Iterator[None]:
    """Within the block, files that this process and its children create are accessible only to their owner."""
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)
