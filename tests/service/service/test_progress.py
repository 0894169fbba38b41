"""A search without progress ends when its patience runs out; a restart does not reset the count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import SickCard, evaluator, finish
from tests.support.builders import failed, measured, spec, trial
from tests.support.lanes import soaked
from tests.support.repeats import REPEATS
from tests.support.waiting import wait_until
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Budget, JobSpec, JobState, PriorsChoice, Trial
from tuner.core.trial.outcome import Measured
from tuner.service.runner.progress import MIN_PROGRESS, Progress


def impatient(patience: int, m: int = 16, trials: int = 400) -> JobSpec:
    return replace(spec(m), budget=Budget(trials=trials, seconds=600, patience=patience))


def test_progress_is_a_trial_of_ours_that_is_faster_by_more_than_noise() -> None:
    progress = Progress(None, [])
    for number, (outcome, kind, num_since) in enumerate(
        [
            (measured(100.0), PlanKind.LIBRARY, 0),
            (measured(80.0), PlanKind.FUSED, 0),
            (failed(), PlanKind.FUSED, 1),
            (measured(80.0 / (1 + MIN_PROGRESS)), PlanKind.FUSED, 2),
            (measured(80.0 / (1 + 2 * MIN_PROGRESS)), PlanKind.FUSED, 0),
            (measured(40.0, truncated=True), PlanKind.FUSED, 1),
        ]
    ):
        progress.saw(trial(number, outcome, kind))
        assert progress.num_since == num_since, number
    assert not progress.is_over


def test_patience_that_ran_out_stays_so_whatever_the_last_trials_bring() -> None:
    past = [trial(0, measured(80.0)), *(trial(number, failed()) for number in range(1, 4))]
    assert [Progress(patience, past).is_over for patience in (3, 4)] == [True, False]
    progress = Progress(3, past)
    progress.saw(trial(4, measured(10.0)))
    assert (progress.num_since, progress.is_over) == (0, True)


def stalled_at(trials: list[Trial], patience: int) -> int:
    """How many trials were recorded when the patience ran out."""
    progress = Progress(patience, [])
    for one in trials:
        progress.saw(one)
        if progress.is_over:
            return one.number + 1
    raise AssertionError("it never ran out")


@pytest.mark.slow
@pytest.mark.parametrize("max_ahead", [0, *soaked(None)])
def test_a_search_ends_when_its_patience_does_but_for_what_the_finals_lack(serve: Serve, max_ahead: int | None) -> None:
    service = serve(max_ahead=max_ahead, num_places=4)
    job = finish(service, service.submit(impatient(8))[0])
    assert job.state is JobState.SUCCEEDED
    trials = list(service.trials(job.id, limit=500).items)
    most_on_their_way = 1 if max_ahead == 0 else 6
    stalled = stalled_at(trials, 8)
    assert stalled <= job.num_trials <= stalled + most_on_their_way + 2 * len(REPEATS) < 400
    assert {one.candidate.plan_kind for one in trials} == {kind for kind in PlanKind if kind.is_for(2)}
    held = {one.candidate.plan_kind for one in trials if isinstance(one.outcome, Measured)}
    assert {one.candidate.plan_kind for one in service.best(job.id).finals} == held
    events = [event.data for event in service.events(job.id, limit=500) if event.kind == "trial"]
    assert [data["since_progress"] for data in events][-1] == job.since_progress
    assert all(0 < data["card_share"] <= 1 for data in events[3:])
    assert all(data["eta_s"] >= 0 for data in events)


# In CI, tests/unit/service/test_runner.py has a search that goes on.
@pytest.mark.soak
def test_a_restart_does_not_begin_a_search_again_whose_patience_ran_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.probing.PROBE_PAUSES_S", (0.01,))
    service = serve(max_ahead=0)
    for seed in (9, *range(9)):  # with 9, the search has trials after the one at which its patience ran out
        asked = replace(impatient(6), priors=PriorsChoice.NONE, seed=seed)
        usual = finish(service, service.submit(asked)[0])
        first = list(service.trials(usual.id, limit=500).items)
        if len(first) > stalled_at(first, 6) + 2:
            break
    card = SickCard(stalled_at(first, 6) + 1)
    service = serve(card, max_ahead=0)
    job = service.submit(asked)[0]
    wait_until(lambda: card.num_probes >= 2)
    assert service.job(job.id).num_trials == stalled_at(first, 6) + 1
    service = serve(evaluator(), max_ahead=0)
    assert finish(service, job).state is JobState.SUCCEEDED
    again = list(service.trials(job.id, limit=500).items)
    assert [one.candidate for one in again] == [one.candidate for one in first]
