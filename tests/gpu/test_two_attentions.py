"""A chain of two attentions on a GPU: results, planted faults, the library, and each candidate's time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attention_jobs import read_late, without_torch
from tests.support.between import two_attentions
from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.joint import any_space_of
from tuner.core.trial.outcome import Measured
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine
from tuner.search.guesses.seeds import first_guesses

cupy = pytest.importorskip("cupy")
WORKLOAD = two_attentions()


@pytest.fixture(autouse=True)
def _has_kernels(on_card: OnCard) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)


def candidate(on_card: OnCard, kind: PlanKind = PlanKind.N_LAUNCHES) -> Candidate:
    return Candidate(plan_kind=kind, schedule=next(iter(first_guesses(any_space_of(WORKLOAD, on_card.gpu), 0))))


@pytest.mark.parametrize("kind", [PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL])
def test_numbers_are_right(on_card: OnCard, kind: PlanKind) -> None:
    outcome = on_card.measured(WORKLOAD, candidate(on_card, kind))
    assert outcome.time_us > 1
    assert outcome.rel_error > 0


def test_the_library_is_right_and_timed(on_card: OnCard) -> None:
    outcome = on_card.evaluate(WORKLOAD, on_card.ready(WORKLOAD, LIBRARY).work)
    assert isinstance(outcome, Measured), outcome
    assert outcome.time_us > 1
    tags = {metric.tag for metric in outcome.metrics}
    assert {"library_algorithm_attention1", "library_algorithm_attention2", "library_algorithm_q2"} <= tags


def test_without_pytorch_the_library_is_right_too(on_card: OnCard) -> None:
    on_card.session._prepared = None
    with without_torch():
        outcome = on_card.evaluate(WORKLOAD, on_card.ready(WORKLOAD, LIBRARY).work)
    on_card.session._prepared = None
    assert isinstance(outcome, Measured), outcome


@pytest.mark.parametrize("which", [0, 1])
def test_an_attention_that_reads_the_queries_of_the_run_before_is_found_out(on_card: OnCard, which: int) -> None:
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import WrongNumbers, check_numbers

    prepared: Any = on_card.session._prepare(problem(WORKLOAD))
    work, kernels = on_card.ready(WORKLOAD, candidate(on_card)).work, Kernels()
    runner: Any = load_runner(prepared, work, kernels)
    check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
    one, op = runner._own[which], WORKLOAD.launch_ops[which]
    read_late(one, op.source, cupy.zeros((op.m, op.n), dtype=cupy.uint16))
    with pytest.raises(WrongNumbers, match=f"of attention{1 + which} are wrong"):
        check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
    kernels.unload()
