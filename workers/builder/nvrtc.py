"""Compiles CUDA source to a cubin and reports its resources, by NVRTC, which needs no GPU; cached by content, in
processes that can be killed.

Only the log of `--ptxas-options=-v` reports spilled bytes, and it also contains the warnings of ptxas.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from tuner.core.trial.limits import Limits
from tuner.errors import BuildError, WorkerError
from tuner.private import make_private_folder
from tuner.processes import SPAWN
from tuner.versions import install_command

from ..protocol.process import die_with_parent
from .once import Once

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--ptxas-options=--warn-on-spills")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The compiler's report on one kernel's resources."""

    #: 32-bit registers per thread.
    registers_per_thread: int
    #: Bytes of shared memory declared in the source, without the ring.
    static_smem_bytes: int
    #: Bytes spilled to local memory, stores and loads.
    spill_bytes: int
    #: Bytes of local memory per thread.
    stack_bytes: int
    #: Warnings in the log (among them C75xx); a candidate with any is refused.
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Built:
    """One compiled kernel."""

    #: sha256 of source, options, architecture and compiler version, hex.
    key: str
    #: Version of the compiler, e.g. ``13.0``.
    compiler: str
    cubin: bytes
    resources: Resources
    #: Seconds that NVRTC took; those of the first build if it came from the cache.
    compile_s: float
    cached: bool


class BuildTimeout(BuildError):
    """The compiler did not finish before its deadline and was killed."""


class SourceRefused(BuildError):
    """The compiler refused the source, and would refuse it again."""


def nvrtc_version() -> str:
    """e.g. ``13.0``.

    Raises:
        BuildError: NVRTC is not installed.
    """
    from cuda.bindings import nvrtc

    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise BuildError(f"NVRTC cannot be loaded ({error}): {install_command('worker-cuda13')}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC cannot report its version: {status}")
    return f"{major}.{minor}"


def compile_options(compiler: str) -> tuple[str, ...]:
    """Options for that version of NVRTC, besides the architecture. From version 13 on, NVRTC has its own cache, and
    hits produce no log: so it is disabled."""
    return (*_OPTIONS, "--no-cache") if int(compiler.split(".")[0]) >= 13 else _OPTIONS


def compile_source(source: str, arch: str, options: Sequence[str] | None = None) -> tuple[bytes, str]:
    """Runs NVRTC once in this process; returns cubin and log. `arch` is e.g. ``sm_90a``; `options` replaces
    `compile_options`.

    Raises:
        SourceRefused: with the compiler's log.
        BuildError: the compiler failed for another reason, e.g. lack of memory.
    """
    from cuda.bindings import nvrtc

    def check(status: object) -> None:
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"NVRTC: {status}")

    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    check(status)
    try:
        chosen = compile_options(nvrtc_version()) if options is None else options
        encoded = [option.encode() for option in (f"--gpu-architecture={arch}", *chosen)]
        (compiled,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        status, size = nvrtc.nvrtcGetProgramLogSize(program)
        check(status)
        log = bytearray(size)
        check(nvrtc.nvrtcGetProgramLog(program, log)[0])
        text = bytes(log).rstrip(b"\0").decode(errors="replace")
        if compiled == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise SourceRefused(f"{compiled.name}\n{text}")
        if compiled != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"{compiled.name}\n{text}")
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        check(status)
        cubin = bytearray(size)
        check(nvrtc.nvrtcGetCUBIN(program, cubin)[0])
        return bytes(cubin), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_own_source(source: str, arch: str, options: Sequence[str] = ()) -> bytes:
    """The cubin of a user's own source, with the toolkit's headers if they are found; otherwise like
    `compile_source`."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = dict.fromkeys(filter(None, map(find_nvidia_header_directory, ("cudart", "cccl"))))
    headers = [f"--include-path={folder}" for folder in found]
    return compile_source(source, arch, ["--std=c++17", *headers, *options])[0]


def parse_log(log: str) -> Resources:
    """Parses the output of ptxas; returns the largest figure if a source contains several kernels.

    Raises:
        BuildError: the log has no register counts.
    """

    def largest(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    registers = largest(r"Used (\d+) registers")
    if not registers:
        raise BuildError(f"the compiler's log has no register counts:\n{log}")
    return Resources(
        registers_per_thread=registers,
        static_smem_bytes=largest(r"(\d+) bytes smem"),
        spill_bytes=largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads"),
        stack_bytes=largest(r"(\d+) bytes stack frame"),
        warnings=tuple(line.strip() for line in log.splitlines() if re.search(r"warning|C75\d\d", line, re.IGNORECASE)),
    )


def build_key(source: str, arch: str, compiler: str) -> str:
    """The content address of a build."""
    return hashlib.sha256("\0".join((source, arch, compiler, *compile_options(compiler))).encode()).hexdigest()


def _compile_timed(source: str, arch: str) -> tuple[bytes, str, float]:
    begin = time.perf_counter()
    cubin, log = compile_source(source, arch)
    return cubin, log, time.perf_counter() - begin


def _begin_process(parent_pid: int, modules: Sequence[str]) -> None:
    """Runs first in each process: imports the modules that it will need."""
    die_with_parent(parent_pid)
    nvrtc_version()
    for module in modules:
        import_module(module)


def _do_nothing() -> None:
    pass


#: The number of compiles for which one process is reserved for short calls. A proof must not wait behind compiles,
#: which may occupy every process for seconds.
_COMPILES_PER_SHORT = 4
#: With fewer parallel compiles than this, the calling thread runs short calls itself: with few cores, one interpreter
#: is enough, and another process would take a core.
_LEAST_COMPILES = 3


class Builder:
    """Compiles in processes that can be killed, and keeps the results in `cache_dir` (source, cubin, resources by key).

    Any thread may build; if several threads request the same build, it is compiled once. A source that the compiler
    refused is refused again without compiling: many orderings share a tiling, and so a source.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        limits: Limits | None = None,
        num_processes: int = 1,
        modules: Sequence[str] = (),
    ) -> None:
        """`limits` bounds one compile. A process must first start and read the source, and `limits` bounds that
        wait, too. `num_processes` is the maximum number of parallel compiles; a few more processes run the functions
        passed to `run`, if there are enough cores. `modules` are the modules of these functions: the processes
        import them first."""
        self._cache_dir = cache_dir
        self._limits = limits or Limits()
        num_short = math.ceil(num_processes / _COMPILES_PER_SHORT) if num_processes >= _LEAST_COMPILES else 0
        self._free = threading.BoundedSemaphore(num_processes)
        self._free_for_short = threading.BoundedSemaphore(num_short) if num_short else None
        self._once = Once[str, Built]()
        #: Why the compiler refused a source, by key. An entry never changes, so no lock is needed.
        self._refused: dict[str, SourceRefused] = {}
        #: Done when the compilers are closed, since a stopped pool does not complete its futures.
        self._end = Future[None]()
        self._num_users = 1
        self._users_lock = threading.Lock()
        self._compiler = nvrtc_version()
        make_private_folder(cache_dir)
        self._make_pool = partial(
            ProcessPool,
            max_workers=num_processes + num_short,
            context=SPAWN,
            initializer=_begin_process,
            initargs=(os.getpid(), tuple(modules) if num_short else ()),
        )
        #: Guards `_pool`, which is replaced if it breaks, and its end.
        self._pool_lock = threading.Lock()
        self._pool = self._make_pool()

    @property
    def compiler_version(self) -> str:
        """NVRTC's, e.g. ``13.0``."""
        return self._compiler

    def begin(self) -> None:
        """Starts the processes, so that the first build does not wait for them; they end with this thread. Otherwise
        the first build starts them."""
        self._schedule(_do_nothing)

    def build(self, source: str, arch: str) -> Built:
        """The cubin of `source` for `arch`, from the cache if it is there.

        Raises:
            BuildTimeout: the deadline passed and the compiler was killed, or no compiler accepted the source.
            BuildError: the compiler refused the source, or its process died.
            WorkerError: the builder was closed meanwhile.
        """
        key = build_key(source, arch, self._compiler)
        if key in self._refused:
            raise SourceRefused(str(self._refused[key]))
        built, is_theirs = self._once.get(key, lambda: self._read(key) or self._compile(key, source, arch))
        return replace(built, cached=True) if is_theirs else built

    def build_own(self, source: str, arch: str, options: Sequence[str]) -> bytes:
        """The cubin of a user's own source, which is not cached; raises as `build`."""
        return self._run(self._free, compile_own_source, source, arch, options)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a short function, in one of the processes if the machine has enough cores; any thread may call this.
        Arguments and result are pickled.

        Raises:
            BuildTimeout, BuildError, WorkerError: as `build`; and whatever the function raises.
        """
        if self._free_for_short is None:
            return function(*args, **kwargs)
        return self._run(self._free_for_short, function, *args, **kwargs)

    def _run(self, free: threading.BoundedSemaphore, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs it in a process of the pool `free`."""
        with free:  # so that calls do not wait for other calls' compiles, and the wait is bounded
            deadline_s = self._limits.build_deadline_s
            future = self._schedule(function, args=args, kwargs=kwargs, timeout=deadline_s)
            limit_s = deadline_s + self._limits.start_deadline_s
            waited_for: list[Future[Any]] = [future, self._end]
            answered, _ = wait(waited_for, limit_s, return_when=FIRST_COMPLETED)
        if future not in answered:
            future.cancel()  # type: ignore[no-untyped-call]
            if self._end in answered:
                raise WorkerError("the compilers were closed")
            raise BuildTimeout(f"no compiler responded within {limit_s:g} s")
        try:
            return future.result()
        except FutureTimeoutError as error:
            raise BuildTimeout(f"the compiler was killed after {deadline_s:g} s") from error
        except (ProcessExpired, BrokenProcessPool) as error:
            raise BuildError(f"the compiler's process died: {error}") from error

    def _schedule(self, function: Callable[..., T], **options: Any) -> ProcessFuture[T]:
        """Schedules the call in the pool. If an idle process dies, e.g. for lack of memory, the pool breaks, and
        another one replaces it. The first call starts the processes."""
        with self._pool_lock:
            if self._end.done():
                raise WorkerError("the compilers are closed")
            if not self._pool.active:
                _log.warning("a build process has died, and all of them are restarted")
                _end_pool(self._pool)
                self._pool = self._make_pool()
            return self._pool.schedule(function, **options)

    def _compile(self, key: str, source: str, arch: str) -> Built:
        try:
            cubin, log, compile_s = self._run(self._free, _compile_timed, source, arch)
        except SourceRefused as error:
            self._refused[key] = error
            raise
        built = Built(
            key=key,
            compiler=self._compiler,
            cubin=cubin,
            resources=parse_log(log),
            compile_s=compile_s,
            cached=False,
        )
        keep_build(self._cache_dir, built, source)
        return built

    def share(self) -> Self:
        """Shares this builder with one more user, who must also close it."""
        with self._users_lock:
            self._num_users += 1
        return self

    def close(self) -> None:
        """Ends the processes, even during a compile, when the last user closes it."""
        with self._users_lock:
            self._num_users -= 1
            if self._num_users:
                return
        with self._pool_lock:
            self._end.set_result(None)
            _end_pool(self._pool)

    def _read(self, key: str) -> Built | None:
        try:
            facts = json.loads((self._cache_dir / f"{key}.json").read_text())
            cubin = (self._cache_dir / f"{key}.cubin").read_bytes()
        except (OSError, ValueError):
            return None
        if hashlib.sha256(cubin).hexdigest() != facts["cubin_sha256"]:
            return None
        resources = Resources(**{**facts["resources"], "warnings": tuple(facts["resources"]["warnings"])})
        return Built(
            key=key,
            compiler=self._compiler,
            cubin=cubin,
            resources=resources,
            compile_s=facts["compile_s"],
            cached=True,
        )


def _end_pool(pool: ProcessPool) -> None:
    """Ends its processes, and waits until they have ended."""
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def keep_build(cache_dir: Path, built: Built, source: str) -> None:
    """Stores a build where a `Builder` with the same folder finds it."""
    facts = {
        "compile_s": built.compile_s,
        "cubin_sha256": hashlib.sha256(built.cubin).hexdigest(),
        "resources": asdict(built.resources),
    }
    write_atomically(cache_dir / f"{built.key}.cu", source.encode())
    write_atomically(cache_dir / f"{built.key}.cubin", built.cubin)
    write_atomically(cache_dir / f"{built.key}.json", json.dumps(facts).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Writes `data` so that `path` has either all of it or its previous content."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
