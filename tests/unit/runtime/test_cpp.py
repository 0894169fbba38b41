"""The example of C++ builds in a clean folder by CMake, with gcc and with clang, and runs a pack over the recorder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native.recorder import compile_recorder
from tests.support.packs import ladder, make
from tests.support.repository import ROOT
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack

COMPILERS = {"gcc": "g++", "clang": "clang++"}
pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


def run(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **options})


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_builds_without_a_warning_and_launches(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    shutil.copytree(ROOT / "examples" / "cpp", tmp_path / "source")
    made = make(PlanKind.FUSED_PDL).kernel
    write_pack([ladder(made)], tmp_path / "any.tunerpack")
    build = str(tmp_path / "build")
    configured = run(
        *("cmake", "-S", str(tmp_path / "source"), "-B", build, f"-DTuner_DIR={ROOT / 'runtime' / 'cmake'}"),
        *(f"-DPACK={tmp_path / 'any.tunerpack'}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror"),
        *(f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_CXX_COMPILER={COMPILERS[compiler]}"),
    )
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    recorder = str(compile_recorder(tmp_path))
    program = str(Path(build) / "decode")
    ran = run(program, "9", TUNER_LIBCUDA=recorder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"9 rows: fused_pdl: {made.manifest['schedule_in_words']}\n"
    assert run(program, "100", TUNER_LIBCUDA=recorder).stdout == "100 rows: use the library algorithm 7\n"
    (Path(build) / "model.tunerpack").write_bytes(b"PK")
    broken = run(program, "9", TUNER_LIBCUDA=recorder)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "this is no pack" in broken.stderr
