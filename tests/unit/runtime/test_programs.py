"""The runtime in C programs: many threads, no allocation after preparation, and broken packs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.native.fuzzing import SANITIZED, Fuzzer, some_pack
from tests.support.native.recorder import compile_driver, compile_recorder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recorder, and a pack of kernels that differ in everything that the runtime reads."""
    made = tmp_path_factory.mktemp("programs")
    compile_recorder(made)
    some_pack(made)
    return made


def drive(folder: Path, program: Path, *arguments: str) -> str:
    command = [str(program), str(folder / "libcuda.so.1"), str(folder / "some.tunerpack"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout


# In CI, test_safety.py has two threads that load a module, and two that fail.
@pytest.mark.soak
def test_eight_threads_share_a_pack_without_a_race(folder: Path) -> None:
    drive(folder, compile_driver(folder, "threads", *SANITIZED, "-fsanitize=thread"), "threads")


def test_nothing_is_allocated_after_an_ffn_is_prepared(folder: Path) -> None:
    wrapped = (f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "aligned_alloc"))
    printed = drive(folder, compile_driver(folder, "counting", "-DCOUNT_ALLOCATIONS", *wrapped), "allocations")
    counted = re.fullmatch(r"(\d+) before, (\d+) after\n", printed)
    assert counted is not None
    assert int(counted[1]) >= 3
    assert int(counted[2]) == 0


@pytest.mark.slow
def test_a_broken_pack_is_refused_and_never_read_beyond_its_end(tmp_path: Path) -> None:
    """A small share of the cases of tests/soak/packs.py."""
    found = Fuzzer(tmp_path).run(seed=1, count=250)
    assert found.fault == ""
    assert 25 < found.opened < 225


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_clang_compiles_the_runtime_without_a_warning() -> None:
    """The runtime in the other tests is compiled by gcc, with equally strict warnings."""
    assert len(compiled.runtime_objects("clang")) > 1
