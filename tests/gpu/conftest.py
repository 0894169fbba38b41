"""Fixtures of the GPU tests; without a GPU they fail if one is required (TUNER_REQUIRE_GPU=1), and are skipped
otherwise."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tuner.core.problem.gpu import Gpu, gpu_from_live
from tuner.errors import WorkerError
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.cards import Card, usable_gpus
from tuner.workers.source.tools import tools_source

if TYPE_CHECKING:
    from tests.support.conformance.launching import OnCard
    from tuner.workers.gpu.session import Session

GPU_REQUIRED = bool(os.environ.get("TUNER_REQUIRE_GPU"))
if importlib.util.find_spec("cupy") is None and not GPU_REQUIRED:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def card() -> Card:
    """The first usable GPU."""
    try:
        return usable_gpus()[0]
    except WorkerError as error:
        if GPU_REQUIRED:
            pytest.fail(f"a GPU is required: {error}")
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build cache for all processes of a run, so that each kernel is compiled once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "builds").mkdir(exist_ok=True)
    return folder / "builds"


@pytest.fixture(scope="session")
def builder(card: Card, build_cache: Path) -> Iterator[Builder]:
    builder = Builder(build_cache, num_processes=4)
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def gpu(card: Card) -> Gpu:
    """The GPU as the domain type."""
    from tuner.workers.gpu.child import live_facts

    return gpu_from_live(live_facts(card.uuid))


@pytest.fixture(scope="module")
def live_gpu(card: Card, session: Session) -> Gpu:
    """The GPU with the cluster limits that its driver reports, as a service sees it."""
    from tuner.workers.gpu.child import live_facts

    return gpu_from_live(live_facts(card.uuid, session.clusters()))


@pytest.fixture(scope="module")
def session(builder: Builder, gpu: Gpu) -> Session:
    """The child's measuring session, in this process."""
    from tuner.workers.gpu.session import Session

    return Session(builder.build(tools_source(gpu.arch), gpu.arch).cubin)


@pytest.fixture
def on_card(session: Session, builder: Builder, gpu: Gpu) -> OnCard:
    """The context in which a case of the conformance table is run."""
    from tests.support.conformance.launching import OnCard

    return OnCard(session=session, builder=builder, gpu=gpu)
