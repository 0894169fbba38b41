"""Jobs that ask for the least energy near the fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.service.service.conftest import Serve
from tests.support.builders import measured, spec, trial
from tests.support.waiting import wait_until
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobSpec, JobState
from tuner.core.trial.questions import Question
from tuner.core.trial.records import FinalRow, InspectionKind, MatchKind, least_energy_row
from tuner.errors import InvalidInput
from tuner.service.finals.finals import NUM_FOR_ENERGY, near_the_fastest


def row(time_us: float | None, energy_mj: float | None, kind: PlanKind = PlanKind.FUSED) -> FinalRow:
    candidate = trial(0, measured(1.0), kind).candidate
    return FinalRow(
        candidate=candidate,
        trial_number=0,
        time_us=time_us,
        spread=0.01,
        speedup=1.0,
        speedup_ci95=(1.0, 1.0),
        energy_mj=energy_mj,
    )


def test_of_what_is_near_enough_to_the_fastest_the_one_of_least_energy_is_taken() -> None:
    rows = [row(10.9, 5.0, PlanKind.LIBRARY), row(10.0, 9.0), row(10.4, 8.0), row(10.5, None), row(None, 1.0)]
    assert least_energy_row(rows, 5.0) == 2
    assert least_energy_row(rows, 1.0) == 1
    assert least_energy_row(rows, 10.0) == 0
    assert least_energy_row([row(10.0, None)], 5.0) is None
    assert least_energy_row([], 5.0) is None


def test_finalists_for_energy_are_the_nearest_to_the_fastest_and_not_too_many() -> None:
    trials = [trial(i, measured(10.0 + 0.01 * i), stages=2 + i) for i in range(12)]
    trials += [trial(12, measured(12.0), stages=20), trial(13, measured(9.0), PlanKind.LIBRARY)]
    assert [one.number for one in near_the_fastest(trials, 5.0)] == list(range(NUM_FOR_ENERGY))
    assert [one.number for one in near_the_fastest(trials, 0.25)] == [0, 1, 2]
    assert near_the_fastest([], 5.0) == ()


def test_a_job_for_the_least_energy_is_another_problem_and_answers_no_question_of_speed_exactly(serve: Serve) -> None:
    service = serve()
    asked = replace(spec(trials=8), energy_within_percent=20.0)
    assert asked.problem_digest != spec(trials=8).problem_digest
    assert JobSpec.from_json(asked.to_json()) == asked
    assert "energy_within_percent" not in spec().to_json()
    job, _ = service.submit(asked)
    wait_until(lambda: service.job(job.id).state is JobState.SUCCEEDED)
    best = service.best(job.id)
    index = least_energy_row(best.finals, 20.0)
    assert index is not None
    energies = [one.energy_mj for one in best.finals if one.energy_mj is not None]
    assert len(energies) == sum(one.time_us is not None for one in best.finals), "the twin gives energies"
    taken = service.inspections(job.id, range(8))
    assert InspectionKind.ENERGY not in {one.kind for one in taken}, "the verdict had it"
    question = Question(
        workload=asked.workload, target_id=asked.target_id, objective=asked.objective, match=MatchKind.NEAREST
    )
    found = service.find_best(question)
    assert found.match is MatchKind.NEAREST
    assert "chosen for its energy, up to 20 % slower than the fastest" in found.differences


@pytest.mark.parametrize("percent", [0.0, -1.0, 101.0, float("nan")])
def test_a_share_that_is_none_is_refused(percent: float) -> None:
    with pytest.raises(InvalidInput, match="energy_within_percent"):
        replace(spec(), energy_within_percent=percent)
