"""What every lane has: builds kept between runs, unless they are to be cold."""

from __future__ import annotations

import gc
import os

import hypothesis
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.support import compiled

# The width of a terminal, which some runners set: tables in the tests go to pipes.
os.environ.pop("COLUMNS", None)

# How long an example takes is the machine's business: an example that pauses once is not a wrong one.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="compile every kernel again, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    DEFAULT_TIMEOUT_CONFIG.read = 120.0  # httpx's five seconds are few where compilers share two cores with a server
    if config.getoption("--cold"):
        compiled.FOLDER = None
    elif compiled.FOLDER is not None and not hasattr(config, "workerinput"):  # once, not in each process of xdist
        compiled.prune(compiled.FOLDER)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
