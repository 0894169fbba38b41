"""Caches compiled cubins and C programs between test runs, because compiling takes most of the tests' time.

The key of a cubin consists of the source without its comments, the architecture, the options and the compiler's
version. `pytest --cold` starts with an empty folder, which its processes share, as CI does; `make clean` deletes the
cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT
from tuner.runtime.binding import native
from tuner.workers.builder import nvrtc
from tuner.workers.source.render import without_comments

#: The folder of what is compiled.
FOLDER: Path = ROOT / "build" / "cubins"
#: Flags with which the runtime compiles without warnings.
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
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


def built(name: str, *command: str) -> Path:
    """What a C or C++ compiler makes by `command`, which reads only sources of the runtime, those of
    `tests/support/native`, and what this function made.

    Raises:
        CalledProcessError: the compiler's status is not 0; nothing is cached.
    """
    program = shutil.which(command[0]) or command[0]
    text = repr((_sources(), os.stat(program).st_mtime_ns, command))
    path = FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{name}"
    with _alone(path):
        if path.exists():
            os.utime(path)
        else:
            part = path.with_name(f"{os.getpid()}.{path.name}")
            subprocess.run([*command, "-o", str(part)], check=True)
            part.replace(path)
    return path


def runtime_objects(compiler: str) -> list[str]:
    """Paths of the runtime's objects."""
    command = (compiler, *STRICT, "-std=c11", f"-I{native.FOLDER / 'include'}", "-c")
    return [str(built(f"{source.stem}.o", *command, str(source))) for source in native.sources()]


def runtime(*flags: str, compiler: str | None = None) -> Path:
    """The runtime's shared library, compiled with these flags."""
    with _alone(FOLDER / f"runtime-{compiler}"):
        return native.build(FOLDER, compiler=compiler, flags=flags)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Other processes that make the same file wait for the end of the block."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _sources() -> str:
    """A digest of all files that C and C++ programs of tests are made of."""
    found = hashlib.sha256()
    for folder in (native.FOLDER, ROOT / "tests" / "support" / "native"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".c", ".h", ".cpp", ".hpp"):
                found.update(path.read_bytes())
    return found.hexdigest()


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
