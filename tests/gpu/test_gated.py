"""Gates, residuals and row scales on a card: fused, in two launches, and by the library, against float64."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import passed_off
from tests.support.on_card import check_artifact, fused, problem, run, schedule
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, GemmOp, Workload, WorkloadKind, ffn_pair
from tuner.core.schedule.candidate import Candidate, PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

OPTIONS = [
    {"gated": True},
    {"residual": True},
    {"row_scale": True},
    {"gated": True, "bias": True},
    {"gated": True, "bias": True, "residual": True, "row_scale": True},
]
#: Rows of k elements aligned to 2, 4, 8 and 16 bytes; columns that leave half a pair, and half a fragment.
SHAPES = [(1, 1, 1, 1), (16, 512, 1024, 256), (17, 100, 203, 77), (37, 129, 31, 257), (200, 264, 380, 324)]
ALL = dict.fromkeys(("bias", "gated", "residual", "row_scale"), True)


def candidates(m: int, *kinds: PlanKind) -> list[Candidate]:
    """The library, and our kernel in these plan kinds."""
    tile_m = 16 if m <= 16 else 64
    chosen = schedule(((tile_m, 32, 64), (tile_m, 64, 64)))
    return [Candidate(plan_kind=PlanKind.LIBRARY), *(Candidate(plan_kind=kind, schedule=chosen) for kind in kinds)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_option_is_right(
    session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool], dtype: Dtype
) -> None:
    for activation in (Activation.SILU, Activation.GELU) if "gated" in options else (Activation.RELU,):
        pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, dtype=dtype, activation=activation, **options)
        for candidate in candidates(50, PlanKind.FUSED):
            run(session, builder, gpu, problem(pair), candidate)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_right(session: Session, builder: Builder, gpu: Gpu, shape: tuple[int, int, int, int]) -> None:
    m, d_in, d_hidden, d_out = shape
    pair = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=Activation.SILU, **ALL)
    for candidate in candidates(m, PlanKind.FUSED, PlanKind.TWO_LAUNCHES):
        run(session, builder, gpu, problem(pair), candidate)


def test_both_halves_of_the_weights_are_prefetched_into_a_right_result(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    pair = ffn_pair(m=16, d_in=512, d_hidden=1000, d_out=256, activation=Activation.SILU, gated=True)
    if problem_of_kind := kind_problem(pair, gpu, PlanKind.FUSED_PDL):
        pytest.skip(problem_of_kind)
    for candidate in candidates(16, PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL)[1:]:
        run(session, builder, gpu, problem(pair), candidate)


def test_schedules_of_the_gated_space_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    pair = ffn_pair(m=300, d_in=512, d_hidden=640, d_out=384, activation=Activation.SILU, gated=True, residual=True)
    for chosen in Space(pair, gpu).sample(random.Random(3), 12):
        run(session, builder, gpu, problem(pair), fused(chosen))


def test_options_anywhere_in_a_chain_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    """The library's residual behind an activation, and a gated op that reads an op, occur in no pair."""
    ops = (
        GemmOp(name="a", m=100, n=256, k=128, activation=Activation.RELU, residual=True, bias=True),
        GemmOp(name="b", m=100, n=192, k=256, source="a", gated=True, row_scale=True, residual=True),
        GemmOp(name="c", m=100, n=320, k=192, source="b", activation=Activation.SILU, residual=True, row_scale=True),
    )
    asked = problem(Workload(kind=WorkloadKind.CHAIN, ops=ops))
    chosen = schedule(((32, 64, 64), (64, 32, 64), (32, 64, 64)))
    for candidate in (Candidate(plan_kind=PlanKind.LIBRARY), fused(chosen)):
        run(session, builder, gpu, asked, candidate)


@pytest.mark.parametrize("forgotten", ["gated", "residual", "row_scale"])
def test_a_kernel_that_forgets_an_option_is_found_out(
    session: Session, builder: Builder, gpu: Gpu, forgotten: str
) -> None:
    pair = ffn_pair(m=64, d_in=128, d_hidden=256, d_out=128, activation=Activation.SILU, **ALL)
    lacking = replace(pair, ops=tuple(replace(op, **{forgotten: False}) for op in pair.ops))
    work = prepare(lacking, gpu, fused(schedule(((32, 64, 64),) * 2)), builder, {}).work
    outcome = session.evaluate(problem(pair), passed_off(work, pair)).outcome
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS


def test_a_gated_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, **ALL)
    check_artifact(builder, gpu, problem(pair), fused(schedule(((32, 64, 32), (32, 64, 32)))), tmp_path)
