"""Candidates are prepared in the builder's processes; the process that serves jobs only forwards them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attentions import attention
from tests.support.between import two_attentions
from tests.support.cases import H200
from tests.support.rogues import ENDLESS
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import LIBRARY, Candidate, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.joint import JointSpace
from tuner.core.trial.outcome import Failed, FailureKind, Rejected, Stage
from tuner.errors import WorkerError
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.guesses.seeds import first_guesses
from tuner.workers.builder import kernels
from tuner.workers.builder import prepare as here
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare, try_prepare

WORKLOAD = ffn_pair(m=48, d_in=64, d_hidden=128, d_out=128)
TILING = Tiling(tiles=(Tile(m=16, n=32, k=32),) * 2, num_stages=3, num_warps=4)
CANDIDATE = fused(Schedule.of(tiling=TILING, ordering=Ordering(rasters=(Raster(), Raster()))))
#: More stages than allowed.
TOO_DEEP = fused(Schedule.of(tiling=replace(TILING, num_stages=4096), ordering=Ordering(rasters=(Raster(), Raster()))))


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Shared, since its processes take seconds to start."""
    with closing(Builder(tmp_path_factory.mktemp("builds"), num_processes=3)) as builder:
        yield builder


# In CI, tests/unit/workers/builder/test_builder.py has what runs in a process.
@pytest.mark.soak
def test_nothing_is_proven_or_rendered_here_and_what_comes_is_the_same(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(WORKLOAD, H200, CANDIDATE, builder, {})

    def not_here(*_: Any, **__: Any) -> Any:
        raise AssertionError("it ran in the interpreter that serves jobs")

    for name in ("kernels_of", "forecast_us"):
        monkeypatch.setattr(here, name, not_here)
    for name in ("plans_for", "own_plans_for", "render", "own_source", "tie"):
        monkeypatch.setattr(kernels, name, not_here)
    prepared = try_prepare(WORKLOAD, H200, CANDIDATE, builder)
    assert isinstance(prepared, PreparedKernel)
    assert prepared.work.shared is not None
    assert expected.work.shared is not None
    assert prepared.work.shared.ties == expected.work.shared.ties
    prepared.work.shared.check()
    assert prepared.source == expected.source
    assert prepared.forecast_us == forecast_us(WORKLOAD, H200, CANDIDATE)
    assert set(prepared.stage_s) == {"verify", "render", "build"}
    assert isinstance(try_prepare(WORKLOAD, H200, LIBRARY, builder), PreparedKernel)


# In CI, test_attention_copies.py compiles such kernels, and the next tests make products ready.
@pytest.mark.soak
def test_an_attention_with_its_projection_is_made_ready_for_a_gpu_without_a_copy_engine(builder: Builder) -> None:
    """Everything that a GPU would launch is checked without one: proofs, sources, builds without spills, ties."""
    workload, a100 = attention(d_out=512, form={"page_tokens": 16}), CATALOGUE["a100"]
    guess = next(iter(first_guesses(JointSpace(workload, a100), 0)))
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=guess)
    prepared = try_prepare(workload, a100, candidate, builder)
    assert isinstance(prepared, PreparedKernel)
    (launchable,) = prepared.work.own
    launchable.check()
    assert launchable.schedule.engine is AttentionEngine.MMA
    assert prepared.work.shared is not None


def test_a_refusal_comes_from_there_with_its_stage(builder: Builder) -> None:
    refused = try_prepare(WORKLOAD, H200, TOO_DEEP, builder)
    assert isinstance(refused, Rejected)
    assert (refused.stage, list(refused.stage_s)) == (Stage.VERIFY, ["verify"])
    assert "4096 stages" in refused.reason


# In CI, tests/unit/workers/builder/test_builder.py has a short call beside compiles.
@pytest.mark.soak
def test_a_proof_does_not_wait_behind_compiles(tmp_path: Path) -> None:
    with closing(Builder(tmp_path, num_processes=3)) as builder, ThreadPoolExecutor(4) as threads:
        builder.run(len, "the processes have started")
        compiling = [threads.submit(builder.build, source, "sm_80") for source in (ENDLESS + " " * n for n in range(4))]
        time.sleep(0.5)
        begin = time.monotonic()
        assert isinstance(try_prepare(WORKLOAD, H200, TOO_DEEP, builder), Rejected)
        assert time.monotonic() - begin < 20
        assert not any(future.done() for future in compiling)
        builder.close()
        assert {type(future.exception(20)) for future in compiling} == {WorkerError}


@pytest.mark.slow
def test_a_process_that_dies_of_a_candidate_fails_it_and_the_next_one_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Builder(tmp_path, num_processes=3)) as builder:
        with monkeypatch.context() as patched:
            patched.setattr(here, "_try_prove", _die)
            failed = try_prepare(WORKLOAD, H200, CANDIDATE, builder)
        assert isinstance(failed, Failed)
        assert (failed.kind, failed.stage) == (FailureKind.COMPILE_ERROR, Stage.BUILD)
        assert "process died" in failed.reason
        assert isinstance(try_prepare(WORKLOAD, H200, CANDIDATE, builder), PreparedKernel)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# In CI, tests/unit/workers/builder/test_builder.py has few cores.
@pytest.mark.soak
def test_on_few_cores_the_thread_that_asks_does_what_is_short(tmp_path: Path, builder: Builder) -> None:
    assert builder.run(os.getpid) != os.getpid()
    with closing(Builder(tmp_path, num_processes=2)) as of_few_cores:
        assert of_few_cores.run(os.getpid) == os.getpid()
        assert isinstance(try_prepare(WORKLOAD, H200, CANDIDATE, of_few_cores), PreparedKernel)


@pytest.mark.soak
def test_a_chain_of_two_attentions_is_made_ready_in_the_order_of_its_ops(builder: Builder) -> None:
    workload = two_attentions()
    guess = next(iter(first_guesses(JointSpace(workload, H200), 0)))
    prepared = try_prepare(workload, H200, Candidate(plan_kind=PlanKind.N_LAUNCHES_PDL, schedule=guess), builder)
    assert isinstance(prepared, PreparedKernel)
    of_tile_ops, first, second = prepared.work.launchables
    assert of_tile_ops is prepared.work.shared
    assert prepared.work.own == (first, second)
    assert [one.op.name for one in prepared.work.own] == ["attention1", "attention2"]
    for one in prepared.work.launchables:
        one.check()
    assert len(prepared.kernels) == 3
    assert prepared.shared is prepared.kernels[0]
