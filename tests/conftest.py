"""Fixtures and hooks of all tests: builds are kept between runs unless a cold run is requested."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.support import compiled

# Some runners set the width of a terminal, but tables in tests are written to pipes.
os.environ.pop("COLUMNS", None)

# The duration of an example depends on the machine; a pause does not make it wrong.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="compile every kernel again, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    DEFAULT_TIMEOUT_CONFIG.read = (
        120.0  # httpx's default of five seconds is too short when compilers share two cores with a server
    )
    worker = getattr(config, "workerinput", None)  # None outside xdist
    if not config.getoption("--cold"):
        if worker is None:
            compiled.prune(compiled.FOLDER)
    elif worker is None:
        empty = tempfile.TemporaryDirectory(prefix="cubins-")
        config.add_cleanup(empty.cleanup)
        compiled.FOLDER = Path(empty.name)
    else:
        compiled.FOLDER = Path(worker["cubins"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of a cold run share a build cache, so no kernel is compiled twice."""
    node.workerinput["cubins"] = str(compiled.FOLDER)


def pytest_collection_finish() -> None:
    """Everything imported and collected lives until the end, so the garbage collector can skip it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
