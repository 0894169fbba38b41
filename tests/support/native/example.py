"""The C++ example, built by CMake in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.repository import ROOT

#: The C compiler, and the C++ compiler of the same family.
COMPILERS = {"gcc": "g++", "clang": "clang++"}


def run_command(*command: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with `variables` in its environment."""
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **variables})


def built_example(compiler: str, folder: Path, **options: Path | str) -> Path:
    """The program, built in `folder` without a warning; paths among the `options` are relative to it."""
    shutil.copytree(ROOT / "examples" / "cpp", folder / "source")
    build = folder / "build"
    configured = run_command(
        *("cmake", "-S", str(folder / "source"), "-B", str(build), f"-DTuner_DIR={ROOT / 'runtime' / 'cmake'}"),
        *("-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror", *(f"-D{name}={to}" for name, to in options.items())),
        *(f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_CXX_COMPILER={COMPILERS[compiler]}"),
        cwd=folder,
    )
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = run_command("cmake", "--build", str(build))
    assert built.returncode == 0, built.stdout + built.stderr
    return build / "decode"
