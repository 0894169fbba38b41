"""Fixtures and hooks of all tests: builds are kept between runs unless a cold run is requested."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.support import certificates, compiled, kept_tilings

# Some runners set the width of a terminal, but tables in tests are written to pipes.
os.environ.pop("COLUMNS", None)

# Until all tests are collected, nearly every new object lives until the end.
gc.disable()

# How long an example takes depends on the machine; a slow one is not wrong. Each run has other examples.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=40)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="module")
def tilings_are_listed_once() -> Iterator[None]:
    """The tilings of a space are those that another process of this run has listed."""
    with kept_tilings.kept(with_forecasts=False):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="do not use cached kernels, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    DEFAULT_TIMEOUT_CONFIG.read = (
        120.0  # httpx's default of five seconds is too short when compilers share two cores with a server
    )
    certificates.share()
    worker = getattr(config, "workerinput", None)  # None outside of xdist
    if worker is None:
        tilings = tempfile.TemporaryDirectory(prefix="tilings-")
        config.add_cleanup(tilings.cleanup)
        os.environ[kept_tilings.FOLDER] = tilings.name
    if config.getoption("numprocesses", None) and not sys.dont_write_bytecode:
        rewrite_ahead(config)
    if not config.getoption("--cold"):
        if worker is None:
            compiled.prune(compiled.FOLDER)
    elif worker is None:
        empty = tempfile.TemporaryDirectory(prefix="cubins-")
        config.add_cleanup(empty.cleanup)
        compiled.FOLDER = Path(empty.name)
    else:
        compiled.FOLDER = Path(worker["cubins"])


def rewrite_ahead(config: pytest.Config) -> None:
    """Rewrites the asserts of all tests on all cores (16 s on one)."""
    missing = [path for path in Path(__file__).parent.rglob("test_*.py") if not _rewritten(path).exists()]
    num_processes = os.cpu_count() or 1
    parts = [missing[number::num_processes] for number in range(num_processes)]
    context = get_context("fork")
    begun = [context.Process(target=_rewrite, args=(config, part)) for part in parts if part]
    for process in begun:
        process.start()
    for process in begun:
        process.join()


def _rewritten(path: Path) -> Path:
    return get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"


def _rewrite(config: pytest.Config, paths: list[Path]) -> None:
    for path in paths:
        target = _rewritten(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        source_stat, code = _rewrite_test(path, config)
        _write_pyc(config.stash[assertstate_key], code, source_stat, target)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of a cold run share a build cache, so no kernel is compiled twice."""
    node.workerinput["cubins"] = str(compiled.FOLDER)


def pytest_collection_finish() -> None:
    """Everything imported and collected lives until the end, so the garbage collector can skip it."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
