"""The members of a study: which of them shared the rounds of the finals, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.support.builders import BEST, failed, measured, schedule, spec, trial
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.records import FinalRow
from tuner.wire.responses.study import StudyView

SHARED, ALONE, FAILED, UNTRIED = (
    Candidate(plan_kind=PlanKind.FUSED, schedule=schedule(stages)) for stages in range(2, 6)
)


def test_a_schedule_beside_the_shared_rounds_has_its_trials_time_and_a_mark_once_they_are_over() -> None:
    asked = replace(spec(), tried=(SHARED, ALONE, FAILED, UNTRIED))
    job: Any = SimpleNamespace(id="job-1", spec=asked, state=JobState.SUCCEEDED)
    outcomes = {SHARED: measured(5.0), ALONE: measured(8.0), FAILED: failed()}
    trials = {one: trial(number, outcome) for number, (one, outcome) in enumerate(outcomes.items())}
    facts: Any = {"trial_number": 0, "time_us": 4.0, "spread": 0.01, "speedup": 1.25, "speedup_ci95": (1.2, 1.3)}
    best = replace(BEST, finals=(FinalRow(candidate=SHARED, num_rounds=6, **facts),))
    found = StudyView.of(job, trials, best, cache=4)
    assert found.num_rounds == 6
    shared, alone, lost, untried = found.members
    assert (shared.time_us, shared.reason, shared.interval_us is not None) == (4.0, "", True)
    assert (alone.time_us, alone.interval_us) == (8.0, None)
    assert alone.reason.startswith("not in the shared rounds, which include only the 64 fastest")
    assert (lost.time_us, lost.reason) == (None, failed().reason)
    assert (untried.time_us, untried.trial_number, untried.reason) == (None, None, "")
    before = StudyView.of(job, trials, None, cache=4).members
    assert [one.reason for one in before] == ["", "", failed().reason, ""]
