"""Writing results: whole or not at all, and only where something changed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> bool:
    """Puts `content` at `path` in one step; an unchanged file is left alone. Whether anything was written.

    A link stays, and what it leads to is written. A device or a pipe stays, and takes the content.

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
    # In the same folder, since only inside one file system is a rename atomic.
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
