"""This lane needs a card: it fails, and does not skip, when a card is required (TUNER_REQUIRE_GPU=1)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.errors import WorkerError
from workers.build import Builder
from workers.cards import Card, usable_gpus

GPU_REQUIRED = bool(os.environ.get("TUNER_REQUIRE_GPU"))
if importlib.util.find_spec("cupy") is None and not GPU_REQUIRED:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def card() -> Card:
    """The first usable card."""
    try:
        return usable_gpus()[0]
    except WorkerError as error:
        if GPU_REQUIRED:
            pytest.fail(f"a GPU is required: {error}")
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="session")
def builder(card: Card, build_cache: Path) -> Iterator[Builder]:
    builder = Builder(build_cache, num_processes=4)
    yield builder
    builder.close()
