"""Caches compiled cubins between test runs, because compiling takes most of the tests' time.

The key consists of the source without its comments, the architecture, the options and the compiler's version. `pytest
--cold` starts with an empty folder, as CI does; `make clean` deletes the cache.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tests.support.repository import ROOT
from tuner.workers.builder import nvrtc
from tuner.workers.source.render import without_comments

#: The folder of the cubins.
FOLDER: Path = ROOT / "build" / "cubins"
#: Above this size, the least recently used are removed.
LIMIT_BYTES = 2**30


def compile_source(source: str, arch: str) -> tuple[bytes, str]:
    """Cubin and log, as `nvrtc.compile_source` returns them.

    Sources that differ only in comments share an entry, so line numbers in a log or an assertion may belong to another
    source.

    Raises:
        BuildError: with the compiler's log; nothing is cached.
    """
    path = FOLDER / nvrtc.build_key(without_comments(source), arch, nvrtc.nvrtc_version())
    if (kept := _read(path)) is not None:
        return kept
    cubin, log = nvrtc.compile_source(source, arch)
    FOLDER.mkdir(parents=True, exist_ok=True)
    nvrtc.write_atomically(path, zlib.compress(len(cubin).to_bytes(8, "little") + cubin + log.encode(), level=1))
    return cubin, log


def _read(path: Path) -> tuple[bytes, str] | None:
    """The stored result, now marked as used last; None if none is complete."""
    try:
        data = zlib.decompress(path.read_bytes())
        os.utime(path)
    except (OSError, zlib.error):
        return None
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size], data[8 + size :].decode()


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Removes the least recently used entries until the rest fits."""
    files = [(path.stat(), path) for path in folder.iterdir()] if folder.exists() else []
    size = sum(stat.st_size for stat, _ in files)
    for stat, path in sorted(files, key=lambda file: file[0].st_mtime):
        if size <= limit_bytes:
            return
        path.unlink(missing_ok=True)
        size -= stat.st_size
