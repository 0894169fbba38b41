"""A job with very many trials: each request reads a bounded number of rows."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.builders import failed, measured, rejected, spec, trial
from tests.support.queries import plans_of, whole_tables
from tests.support.serving import listening
from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import FailureKind, Measured
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials
from tuner.store.trials.trials import MAX_FORECASTS

NUM_TRIALS = 300


def random_trials() -> list[Trial]:
    """Trials of every kind and outcome, many with equal times."""
    chance = random.Random(5)
    found = []
    for number in range(NUM_TRIALS):
        time_us = float(chance.randrange(20, 60))
        outcome = chance.choice(
            [measured(time_us, metrics=(forecast_metric(time_us + 1),), rounds=())] * 3
            + [rejected(), failed(chance.choice(list(FailureKind)))]
        )
        found.append(trial(number, outcome, chance.choice([kind for kind in PlanKind if not kind.is_joined])))
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store, and the id and trials of its job."""
    path: Path = tmp_path_factory.mktemp("large") / "data"
    store, known = Store.open(path), random_trials()
    with store.write() as session:
        job = jobs.insert(session, spec(trials=100_000), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for one in known:
            trials.record(session, job.id, one, 0.1)
    yield store, job.id, known
    store.close()


def rank(one: Trial, sort: str) -> tuple[float, int]:
    """The position of a trial in an order."""
    if sort == "number":
        return float(one.number), one.number
    if not isinstance(one.outcome, Measured):
        return 1e20, one.number
    return one.outcome.time_us if sort == "time" else -one.outcome.speedup, one.number


FILTERS = list(
    itertools.product(
        (None, "measured", "rejected", "failed"), (None, PlanKind.FUSED), (None, FailureKind.HANG),
        ("number", "time", "speedup"),
    )
)  # fmt: skip


@pytest.mark.parametrize(("outcome", "kind", "reason", "sort"), FILTERS)
def test_pages_follow_each_other_without_a_gap_in_every_order(
    large: Any, outcome: str | None, kind: PlanKind | None, reason: FailureKind | None, sort: trials.SortKey
) -> None:
    store, job_id, known = large
    chosen = trials.TrialFilter(outcome=outcome, plan_kind=kind, reason=reason, sort=sort)
    wanted = [
        one.number
        for one in sorted(known, key=lambda one: rank(one, sort))
        if outcome in (None, type(one.outcome).__name__.lower())
        and kind in (None, one.candidate.plan_kind)
        and reason in (None, getattr(one.outcome, "kind", ""))
    ]
    found: list[int] = []
    cursor = None
    with store.read() as session:
        for _ in range(NUM_TRIALS):
            page = trials.page(session, job_id, chosen, cursor, 7)
            found += [one.number for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
    assert found == wanted


# In CI, tests/service/service/test_matching.py has a question that looks through no table.
@pytest.mark.soak
def test_a_job_its_page_and_its_trials_look_through_no_whole_table(large: Any) -> None:
    store, job_id, _ = large
    paths = [f"/jobs/{job_id}", f"/ui/jobs/{job_id}", f"/ui/jobs/{job_id}.json"]
    paths += [f"/jobs/{job_id}/trials?sort={sort}&outcome=measured" for sort in ("number", "time", "speedup")]
    service = Service(store, LocalDispatcher([]))
    with listening(service) as url, plans_of(store.engine) as steps:
        for path in paths:
            assert httpx.get(f"{url}{path}").status_code == 200
    assert steps
    # Whether there is any token is read from the first row only.
    assert [step for step in whole_tables(steps) if "FROM tokens\n LIMIT" not in step] == []
    sorts = [step for step in steps if step.startswith("USE TEMP B-TREE FOR ORDER BY")]
    # Only the listed trials are sorted.
    few = ("FROM inspections", "FROM job_owners", "FROM webhooks")  # of this job alone
    few = (*few, "jobs.is_paused IS 0")  # jobs that wait for a target
    assert [step for step in sorts if not any(name in step for name in few)] == [], "sorting reads every row"


def test_forecasts_are_judged_by_a_bounded_number_of_trials(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, job_id, known = large
    assert MAX_FORECASTS < 100_000
    monkeypatch.setattr(trials, "MAX_FORECASTS", 50)
    with store.read() as session:
        found = trials.forecasts(session, job_id)
    of_kinds = [
        [
            one.outcome.time_us + 1
            for one in known[::6]
            if one.candidate.plan_kind is kind and isinstance(one.outcome, Measured)
        ]
        for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL)
    ]
    assert len(of_kinds[0]) != len(of_kinds[1])
    assert [forecast for forecast, _ in found] == max(of_kinds, key=len)


def test_the_counts_of_outcomes_are_those_of_the_trials(large: Any) -> None:
    store, job_id, known = large
    names = [getattr(one.outcome, "kind", type(one.outcome).__name__.lower()) for one in known]
    with store.read() as session:
        assert trials.outcome_counts(session, job_id) == {name: names.count(name) for name in set(names)}


def test_the_fastest_of_each_kind_is_looked_up_among_its_own_trials(large: Any) -> None:
    store, job_id, known = large
    with plans_of(store.engine) as steps, store.read() as session:
        found = trials.fastest(session, job_id)
    times: dict[PlanKind, list[tuple[float, int]]] = {}
    for one in known:
        if isinstance(one.outcome, Measured) and one.candidate.plan_kind.is_ours:
            times.setdefault(one.candidate.plan_kind, []).append((one.outcome.time_us, one.number))
    assert found == {kind: min(all_of_it) for kind, all_of_it in times.items()}
    asked = [step for step in steps if "plan_kind" in step]
    assert len(asked) == sum(kind.is_ours for kind in PlanKind)
    assert [step for step in asked if "COVERING INDEX ix_trials_kind" not in step] == [], "it reads all trials by time"
