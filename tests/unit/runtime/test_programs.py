"""The runtime in programs of C: many threads, no allocation after it is prepared, and packs that are broken."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native.recorder import STRICT, compile_driver, compile_recorder
from tests.support.packs import ffn, ladder, make, without_source
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime import native

SANITIZED = ("-O1", "-fno-omit-frame-pointer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the recorder, and a pack of kernels that differ in all that the runtime looks at."""
    made = tmp_path_factory.mktemp("programs")
    compile_recorder(made)
    small = [make(PlanKind.TWO_STREAMS), make(PlanKind.FUSED_PDL, workload=ffn(48))]
    full = [make(PlanKind.TWO_LAUNCHES_PDL, workload=ffn(16, full=True))]
    entries = [ladder(*(without_source(one.kernel) for one in made_)) for made_ in (small, full)]
    write_pack(entries, made / "some.tunerpack")
    return made


def drive(folder: Path, program: Path, *arguments: str) -> str:
    command = [str(program), str(folder / "libcuda.so.1"), str(folder / "some.tunerpack"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_eight_threads_share_a_pack_without_a_race(folder: Path) -> None:
    drive(folder, compile_driver(folder, "threads", *SANITIZED, "-fsanitize=thread"), "threads")


def test_nothing_is_allocated_after_an_ffn_is_prepared(folder: Path) -> None:
    wrapped = (f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "aligned_alloc"))
    printed = drive(folder, compile_driver(folder, "counting", "-DCOUNT_ALLOCATIONS", *wrapped), "allocations")
    counted = re.fullmatch(r"(\d+) before, (\d+) after\n", printed)
    assert counted is not None
    assert int(counted[1]) >= 3
    assert int(counted[2]) == 0


def test_a_broken_pack_is_refused_and_never_read_beyond_its_end(folder: Path) -> None:
    """A small share of what tests/soak/packs.py runs."""
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DTUNER_FUZZING")
    program = compile_driver(folder, "fuzz", *SANITIZED, *sanitizers)
    printed = drive(folder, program, "fuzz", "1", "4000")
    opened = re.fullmatch(r"4000 inputs, (\d+) opened\n", printed)
    assert opened is not None
    assert 400 < int(opened[1]) < 3600


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_clang_compiles_the_runtime_without_a_warning(tmp_path: Path) -> None:
    """What the recorder runs on was compiled by gcc, as strictly."""
    native.build(tmp_path, compiler="clang", flags=STRICT)
