"""The wheel for all arms, and the time limits of tests."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.vllm.arms import Arms

#: An arm is limited by CPU time, since its wall time depends on the machine's load; so does importing vLLM.
LIMIT_S = 7200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives all tests of this folder the long limit."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's own files with its entry points, as installed; and `layers_by_torch` as a plugin."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(ROOT)]
    subprocess.run(command, check=True)
    (found,) = built.glob("*.whl")
    zipfile.ZipFile(found).extractall(folder)
    beside = folder / "by_torch-0.dist-info"
    beside.mkdir()
    (beside / "METADATA").write_text("Metadata-Version: 2.1\nName: by_torch\nVersion: 0\n")
    (beside / "entry_points.txt").write_text("[vllm.general_plugins]\nby_torch = layers_by_torch:register\n")
    return folder


@pytest.fixture(scope="session")
def arms(wheel: Path) -> Iterator[Arms]:
    """Runs arms of the wheel inside vLLM."""
    found = Arms(wheel)
    yield found
    found.close()
