from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product

import pytest

from tuner.core.trial.job import (
    TRANSITIONS,
    Budget,
    CacheState,
    JobSpec,
    JobState,
    Objective,
    Regime,
    check_transition,
    default_regime,
)
from tuner.errors import Conflict, InvalidInput
from tuner.ops.gemm.pairs import ffn_pair

SPEC = JobSpec(
    workload=ffn_pair(m=16, d_in=64, d_hidden=128, d_out=64),
    target_id="simulated:h200",
    objective=Objective(l2=CacheState.WARM, regime=Regime.SUSTAINED),
    budget=Budget(trials=3, seconds=1.5),
    seed=7,
)


def test_a_job_runs_forward_or_ends() -> None:
    for path in (
        (JobState.QUEUED, JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED),
        (JobState.QUEUED, JobState.CANCELLED),
        (JobState.SEARCHING, JobState.FAILED),
    ):
        for before, after in pairwise(path):
            check_transition(before, after)


def test_every_other_step_is_refused() -> None:
    assert set(TRANSITIONS) == set(JobState)
    for before, after in product(JobState, JobState):
        if after not in TRANSITIONS[before]:
            with pytest.raises(Conflict, match=f"a job that is {before} cannot become {after}"):
                check_transition(before, after)


def test_final_states_are_those_that_nothing_follows() -> None:
    assert {state for state in JobState if state.is_final} == {s for s, after in TRANSITIONS.items() if not after}


def test_a_spec_survives_json() -> None:
    assert JobSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_a_problem_has_the_digest_that_it_had_before_there_were_chains() -> None:
    pair = ffn_pair(m=16, d_in=64, d_hidden=128, d_out=64, gated=True)
    before = JobSpec(workload=pair, target_id="h200", objective=Objective(), budget=Budget())
    assert (before.problem_digest, pair.digest) == ("66a86c3b5db8fef3", "6b636002d64b2057")


def test_the_same_open_problem_differs_in_budget_and_seed_only() -> None:
    assert replace(SPEC, budget=Budget(), seed=0).problem_digest == SPEC.problem_digest
    others = (
        replace(SPEC, target_id="h200"),
        replace(SPEC, objective=Objective()),
        replace(SPEC, workload=ffn_pair(m=17, d_in=64, d_hidden=128, d_out=64)),
    )
    assert len({SPEC.problem_digest, *(other.problem_digest for other in others)}) == 4


@pytest.mark.parametrize(
    ("field", "value"), [("trials", 0), ("trials", -3), ("seconds", 0.0), ("seconds", float("nan"))]
)
def test_an_empty_budget_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"budget.{field}: must be"):
        Budget(**{field: value})  # type: ignore[arg-type]


def test_the_default_regime_is_sustained_where_power_limits() -> None:
    found = [default_regime(ffn_pair(m=m, d_in=256, d_hidden=256, d_out=256)) for m in (1, 255, 256)]
    assert found == [Regime.BURST, Regime.BURST, Regime.SUSTAINED]
