"""Programs written for 0.1.0 compile with today's headers, and print the same about frozen packs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.native.recorder import compile_recorder
from tests.unit.frozen.artifacts import read_pack_file
from tests.unit.frozen.test_artifacts import VERSIONS
from tuner.runtime.binding import native

HERE = Path(__file__).parent
COMPILERS = {"c": ("gcc", "-std=c11"), "cpp": ("g++", "-std=c++17")}
SOURCES = {"c": "program.c", "cpp": "program.cpp", "c_weights": "weights.c"}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recorder, in place of the driver."""
    made = tmp_path_factory.mktemp("programs")
    compile_recorder(made)
    return made


def said(folder: Path, language: str, version: int) -> str:
    """What the program in `language` prints about a frozen pack."""
    compiler, pack = COMPILERS[language.partition("_")[0]], folder / f"index{version}.tunerpack"
    program = folder / f"program_{language}"
    if not program.exists():
        flags = ("-Wall", "-Wextra", "-Werror", f"-I{native.FOLDER / 'include'}", "-pthread")
        objects = compiled.runtime_objects("gcc")
        command = [*compiler, *flags, str(HERE / SOURCES[language]), *objects, "-o", str(program), "-ldl"]
        subprocess.run(command, check=True)
    pack.write_bytes(read_pack_file(version))
    run = [str(program), str(pack), str(folder / "libcuda.so.1")]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "version"),
    [*(("c", version) for version in VERSIONS), *(("cpp", version) for version in (3, 4, 5)), ("c_weights", 6)],
)
def test_a_frozen_program_says_of_a_frozen_pack_what_it_said(folder: Path, language: str, version: int) -> None:
    assert said(folder, language, version) == (HERE / "said" / f"{language}_index{version}.txt").read_text()
