"""Builds are cached by content, killed at their deadline, and end with their parent process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.lanes import soaked
from tests.support.rogues import ENDLESS
from tuner.core.trial.limits import Limits
from tuner.errors import BuildError, WorkerError
from tuner.workers.builder.nvrtc import Builder, BuildTimeout, SourceRefused, build_key, parse_log

KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2.0f; }'


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    builder = Builder(tmp_path / "cache", limits=Limits(build_deadline_s=30))
    yield builder
    builder.close()


def test_a_second_build_of_the_same_source_comes_from_the_cache(builder: Builder) -> None:
    first, second = builder.build(KERNEL, "sm_80"), builder.build(KERNEL, "sm_80")
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.resources) == (second.cubin, second.resources)
    assert builder.build(KERNEL, "sm_90").key != first.key


@pytest.mark.slow
def test_a_source_that_several_want_at_a_time_is_compiled_once(tmp_path: Path) -> None:
    builder = Builder(tmp_path, limits=Limits(build_deadline_s=30), num_processes=3)
    with closing(builder), ThreadPoolExecutor(6) as threads:
        built = list(threads.map(lambda _: builder.build(KERNEL, "sm_80"), range(6)))
        assert [one.cached for one in built].count(False) == 1
        assert len({one.cubin for one in built}) == 1
        errors = [threads.submit(builder.build, "nonsense", "sm_80").exception() for _ in range(3)]
        assert {type(error) for error in errors} == {SourceRefused}


def is_imported(module: str) -> bool:
    return module in sys.modules


# In CI, tests/unit/workers/builder/test_builder.py has what processes import.
@pytest.mark.soak
def test_processes_that_begin_early_import_what_they_are_told(tmp_path: Path) -> None:
    others = {process.pid for process in multiprocessing.active_children()}
    with closing(Builder(tmp_path, num_processes=3, modules=["wave"])) as builder:
        assert not {process.pid for process in multiprocessing.active_children()} - others
        builder.begin()
        begun = {process.pid for process in multiprocessing.active_children()} - others
        assert len(begun) == 4, "three that compile, and one for short work"
        for pid in begun:
            os.kill(pid or os.getpid(), signal.SIGINT)  # Ctrl-C, which is only for the parent process
        assert builder.run(is_imported, "wave")
        assert {process.pid for process in multiprocessing.active_children()} - others == begun
    with closing(Builder(tmp_path, num_processes=3)) as builder:
        assert not builder.run(is_imported, "wave")


def test_a_source_that_the_compiler_refused_is_not_compiled_again_and_hurts_no_other_build(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, schedule = [], builder._pool.schedule

    def counted(function: Any, args: tuple[str, str], **options: Any) -> Any:
        compiled.append(args[0])
        return schedule(function, args=args, **options)

    monkeypatch.setattr(builder._pool, "schedule", counted)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(2):
            errors = [threads.submit(builder.build, "nonsense", "sm_80") for _ in range(3)]
            texts = {str(future.exception(60)) for future in errors}
            assert len(texts) == 1
            assert "NVRTC_ERROR_COMPILATION" in texts.pop()
        assert not builder.build(KERNEL, "sm_80").cached
    assert compiled == ["nonsense", KERNEL]


# In CI, tests/unit/workers/builder/test_builder.py has the last user, who ends a compile.
@pytest.mark.soak
def test_closing_ends_a_compile_that_others_wait_for_unless_another_user_has_the_builder(tmp_path: Path) -> None:
    builder = Builder(tmp_path, limits=Limits(build_deadline_s=60))
    with ThreadPoolExecutor(2) as threads:
        builder.share().close()
        assert not builder.build(KERNEL, "sm_80").cached
        waiting = [threads.submit(builder.build, ENDLESS, "sm_80") for _ in range(2)]
        time.sleep(2)
        begin = time.monotonic()
        builder.close()
        assert {type(future.exception(20)) for future in waiting} == {WorkerError}, "it does not mention the source"
        assert time.monotonic() - begin < 20
        assert isinstance(threads.submit(builder.build, KERNEL, "sm_86").exception(20), WorkerError)


def test_a_damaged_cache_entry_is_built_again(builder: Builder, tmp_path: Path) -> None:
    first = builder.build(KERNEL, "sm_80")
    (tmp_path / "cache" / f"{first.key}.cubin").write_bytes(first.cubin[:-1] + b"x")
    again = builder.build(KERNEL, "sm_80")
    assert not again.cached
    assert again.cubin == first.cubin


def test_an_error_carries_the_compilers_log(builder: Builder) -> None:
    with pytest.raises(BuildError, match=r"NVRTC_ERROR_COMPILATION(?s:.*)no storage class"):
        builder.build("nonsense", "sm_80")


# In CI, tests/unit/workers/builder/test_builder.py has a compile's deadline.
@pytest.mark.soak
def test_a_compile_that_takes_for_ever_is_killed_and_the_next_one_works(tmp_path: Path) -> None:
    builder = Builder(tmp_path, limits=Limits(build_deadline_s=5))
    builder.build(KERNEL, "sm_80")
    begin = time.monotonic()
    try:
        with pytest.raises(BuildTimeout, match="killed after 5 s"):
            builder.build(ENDLESS, "sm_80")
        assert time.monotonic() - begin < 20
        assert not builder.build(KERNEL, "sm_86").cached
    finally:
        builder.close()


def test_a_build_that_no_compiler_takes_keeps_nobody_waiting(tmp_path: Path) -> None:
    builder = Builder(tmp_path, limits=Limits(build_deadline_s=1, start_deadline_s=2))
    builder.build(KERNEL, "sm_80")
    stopped = children_of(os.getpid())
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(BuildTimeout, match="no compiler responded within 3 s"):
            builder.build(KERNEL, "sm_86")
        assert time.monotonic() - begin < 10
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        builder.close()


@pytest.mark.slow
@pytest.mark.parametrize("num_killed", [*soaked(1), 2])
def test_a_process_that_dies_while_it_does_nothing_costs_no_build(tmp_path: Path, num_killed: int) -> None:
    others = set(multiprocessing.active_children())
    with closing(Builder(tmp_path, num_processes=2)) as builder:
        builder.begin()
        for process in list(set(multiprocessing.active_children()) - others)[:num_killed]:
            process.kill()
        time.sleep(0.5)  # the pool sees it
        assert not builder.build(KERNEL, "sm_80").cached
        assert len(set(multiprocessing.active_children()) - others) == 2


def test_the_key_depends_on_source_architecture_and_compiler() -> None:
    keys = {build_key(s, a, c) for s in ("a", "b") for a in ("sm_80", "sm_90a") for c in ("12.8", "13.0")}
    assert len(keys) == 8


def test_a_log_tells_registers_spills_and_warnings() -> None:
    log = """ptxas info    : Compiling entry function 'tuner_chain' for 'sm_90a'
ptxas info    : Function properties for tuner_chain
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 16 bytes smem
ptxas warning : (C7510) Potential Performance Loss
"""
    resources = parse_log(log)
    assert (resources.registers_per_thread, resources.spill_bytes, resources.static_smem_bytes) == (255, 20, 16)
    assert resources.stack_bytes == 24
    assert len(resources.warnings) == 1
    with pytest.raises(BuildError, match="has no register counts"):
        parse_log("nothing")


PARENT = """
import sys
from pathlib import Path
from tuner.workers.builder.nvrtc import Builder

if __name__ == "__main__":
    builder = Builder(Path(sys.argv[1]))
    builder.build('extern "C" __global__ void k() {}', "sm_80")
    print("READY", flush=True)
    builder.build(sys.stdin.read(), "sm_80")
"""


def children_of(pid: int) -> set[int]:
    """The child processes of `pid`, and their children."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found |= {int(entry.name), *children_of(int(entry.name))}
    return found


def test_a_compiler_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), str(tmp_path / "cache")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "READY\n"
        parent.stdin.write(ENDLESS)
        parent.stdin.close()
        children = children_of(parent.pid)
        assert children
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 5
    while alive := [pid for pid in children if is_running(pid)]:
        assert time.monotonic() < end, f"left behind: {alive}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
