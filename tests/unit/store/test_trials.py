from __future__ import annotations

import base64
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import failed, measured, rejected, schedule, spec, trial
from tests.support.lanes import one_in
from tests.unit.store.test_rounds import ROUNDS
from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Rejected, Stage
from tuner.errors import Conflict, InvalidInput, NotFound
from tuner.store import Store
from tuner.store.jobs import events, jobs
from tuner.store.tables.encoding import row_to_trial, trial_to_row
from tuner.store.trials import trials
from tuner.store.trials.trials import TrialFilter

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)
STAGE_S = st.dictionaries(st.sampled_from(["verify", "build", "time"]), POSITIVE)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Rejected, stage=st.sampled_from(Stage), reason=st.text(), stage_s=STAGE_S),
    st.builds(
        Failed, stage=st.sampled_from(Stage), kind=st.sampled_from(FailureKind), reason=st.text(), stage_s=STAGE_S
    ),
    st.builds(
        Measured,
        time_us=POSITIVE,
        library_us=POSITIVE,
        speedup=POSITIVE,
        spread=POSITIVE,
        rounds=ROUNDS,
        rel_error=st.floats(0, 1),
        metrics=st.lists(st.builds(Metric, tag=st.text(), unit=st.text(), value=POSITIVE)).map(tuple),
        stage_s=STAGE_S,
        procedure=st.none()
        | st.builds(
            Procedure,
            l2=st.sampled_from(CacheState),
            regime=st.sampled_from(Regime),
            launch=st.sampled_from(LaunchStyle),
            chain_length=st.integers(1, 256),
        ),
        truncated=st.booleans(),
        remark=st.text(),
    ),
)


def open_job(store: Store, m: int = 16) -> str:
    with store.write() as session:
        job = jobs.insert(session, spec(m), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
    return job.id


def record(store: Store, job_id: str, *recorded: Trial) -> None:
    for one in recorded:
        with store.write() as session:
            trials.record(session, job_id, one, 0.5)


@given(outcome=OUTCOMES, kind=st.sampled_from(PlanKind))
@settings(max_examples=60)
def test_a_trial_reads_back_as_it_was_recorded(outcome: Outcome, kind: PlanKind) -> None:
    candidate = Candidate(plan_kind=kind, schedule=schedule() if kind.is_ours else None)
    one = Trial(number=3, num_known=3, candidate=candidate, outcome=outcome, started_at=1.25, finished_at=2.5)
    assert row_to_trial(trial_to_row("job-1", one)) == one


def test_forecasts_are_those_of_measured_plain_fused_trials_beside_their_times(store: Store) -> None:
    job_id = open_job(store)
    metrics = (Metric(tag="num_tasks", unit="", value=7.0), forecast_metric(40.0))
    record(
        store,
        job_id,
        trial(0, measured(100.0), PlanKind.LIBRARY),
        trial(1, measured(50.0, metrics=metrics)),
        trial(2, measured(60.0)),
        trial(3, failed()),
        trial(4, measured(45.0, metrics=metrics), PlanKind.FUSED_PDL),
        trial(5, measured(25.0, metrics=(forecast_metric(20.0),))),
    )
    with store.read() as session:
        assert trials.forecasts(session, job_id) == [(40.0, 0.5), (20.0, 0.25)]


def test_trials_come_back_from_the_database_in_order(store: Store) -> None:
    job_id = open_job(store)
    recorded = [
        trial(0, measured(100.0), PlanKind.LIBRARY),
        trial(1, failed()),
        trial(2, rejected()),
        trial(3, measured(math.pi)),
    ]
    record(store, job_id, *recorded)
    with store.read() as session:
        assert trials.history(session, job_id) == recorded


def test_recording_counts_the_trial_and_its_seconds_and_tells_it(store: Store) -> None:
    job_id = open_job(store)
    record(store, job_id, trial(0, measured(90.0), PlanKind.LIBRARY), trial(1, measured(80.0)), trial(2, failed()))
    with store.read() as session:
        job = jobs.get(session, job_id)
        kinds = [(event.kind, event.data.get("number")) for event in events.after(session, job_id, 0, 100)]
    assert (job.num_measured, job.num_rejected, job.num_failed, job.num_trials) == (2, 0, 1, 3)
    assert (job.best_us, job.library_us, job.search_s) == (80.0, 90.0, 1.5)
    assert job.best_speedup == 1.25, "that of the trial's own rounds, not of the two times"
    assert kinds == [("state", None), ("state", None), ("trial", 0), ("trial", 1), ("best", 1), ("trial", 2)]


def test_the_best_so_far_goes_by_the_ratio_to_the_library_of_the_same_rounds(store: Store) -> None:
    """The library may be slow for a while: a kernel may take longer then, and still gain more."""
    job_id = open_job(store)
    record(store, job_id, trial(0, measured(80.0, speedup=1.2)), trial(1, measured(70.0, speedup=1.1)))
    record(store, job_id, trial(2, measured(90.0, speedup=1.3)))
    with store.read() as session:
        job = jobs.get(session, job_id)
        numbers = [event.data["number"] for event in events.after(session, job_id, 0, 100) if event.kind == "best"]
        curve = trials.best_so_far(session, job_id)
    assert numbers == [0, 2]
    assert (job.best_us, job.best_speedup) == (90.0, 1.3)
    assert [point[:2] for point in curve] == [(0, 80.0), (2, 90.0)]


def test_a_trial_and_its_event_are_there_together_or_not_at_all(store: Store) -> None:
    job_id = open_job(store)

    class PulledPlug(Exception):
        pass

    with suppress(PulledPlug), store.write() as session:
        trials.record(session, job_id, trial(0, measured(1.0)), 0.5)
        session.flush()
        raise PulledPlug
    with store.read() as session:
        assert trials.history(session, job_id) == []
        assert [event.kind for event in events.after(session, job_id, 0, 9)] == ["state", "state"]
        assert jobs.get(session, job_id).num_trials == 0


@pytest.mark.parametrize("number", [0, 2])
def test_only_the_next_number_is_taken(store: Store, number: int) -> None:
    job_id = open_job(store)
    record(store, job_id, trial(0, measured(1.0)))
    with pytest.raises(Conflict):
        record(store, job_id, trial(number, measured(1.0)))


def test_a_cancelled_job_takes_no_more_trials(store: Store) -> None:
    job_id = open_job(store)
    with store.write() as session:
        jobs.set_state(session, job_id, JobState.CANCELLED, 3.0)
    with pytest.raises(Conflict, match="cancelled"):
        record(store, job_id, trial(0, measured(1.0)))


TIMES = [5.0, 3.0, None, 4.0, None, 3.0, 9.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sort", "numbers"),
    one_in(4, [("number", [0, 1, 2, 3, 4, 5, 6]), ("time", [1, 5, 3, 0, 6, 2, 4]), ("speedup", [1, 5, 3, 0, 6, 2, 4])]),
)
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_hold_every_trial_once_in_the_asked_order(
    store: Store, sort: trials.SortKey, numbers: list[int], limit: int
) -> None:
    job_id = open_job(store)
    record(store, job_id, *(trial(i, measured(t) if t else failed()) for i, t in enumerate(TIMES)))
    found, cursor, more = [], None, True
    while more:
        with store.read() as session:
            page = trials.page(session, job_id, TrialFilter(sort=sort), cursor, limit)
        assert len(page.items) <= limit
        found += [one.number for one in page.items]
        cursor = page.next_cursor
        more = cursor is not None
    assert found == numbers


def test_filters_choose_by_outcome_kind_and_reason(store: Store) -> None:
    job_id = open_job(store)
    record(
        store,
        job_id,
        trial(0, measured(9.0), PlanKind.LIBRARY),
        trial(1, failed(FailureKind.HANG)),
        trial(2, failed(FailureKind.CRASH)),
        trial(3, rejected(), PlanKind.TWO_LAUNCHES),
    )

    def numbers(chosen: TrialFilter) -> list[int]:
        with store.read() as session:
            return [one.number for one in trials.page(session, job_id, chosen, None, 10).items]

    assert numbers(TrialFilter(outcome="failed")) == [1, 2]
    assert numbers(TrialFilter(reason=FailureKind.CRASH)) == [2]
    assert numbers(TrialFilter(plan_kind=PlanKind.LIBRARY)) == [0]
    with store.read() as session:
        counts = trials.outcome_counts(session, job_id)
    assert counts == {"measured": 1, "rejected": 1, "hang": 1, "crash": 1}


def test_a_cursor_of_another_job_filter_or_order_is_refused(store: Store) -> None:
    one, other = open_job(store), open_job(store, 32)
    record(store, one, trial(0, measured(1.0)), trial(1, measured(2.0)))
    with store.read() as session:
        cursor = trials.page(session, one, TrialFilter(), None, 1).next_cursor
        for job_id, chosen in (
            (other, TrialFilter()),
            (one, TrialFilter(sort="time")),
            (one, TrialFilter(outcome="failed")),
        ):
            with pytest.raises(InvalidInput, match="another listing"):
                trials.page(session, job_id, chosen, cursor, 1)


@pytest.mark.slow
@pytest.mark.parametrize("cursor", ["", "x", "!!!", "bnVsbA", "WzEsMl0", "é", "W10="])
def test_what_is_no_cursor_is_refused(store: Store, cursor: str) -> None:
    job_id = open_job(store)
    with store.read() as session, pytest.raises(InvalidInput) as refusal:
        trials.page(session, job_id, TrialFilter(), cursor, 1)
    assert refusal.value.field == "cursor"


HUGE = [
    '["{listing}", [1.0, 18446744073709551616]]',
    '["{listing}", [1.0, -9223372036854775809]]',
    '["{listing}", [1e400, 1]]',
    '["{listing}", [NaN, 1]]',
    '["{listing}", [1.0, true]]',
    "[" * 300,
]


@pytest.mark.parametrize("forged", HUGE)
def test_a_forged_cursor_with_numbers_that_no_database_knows_is_refused(store: Store, forged: str) -> None:
    job_id = open_job(store)
    record(store, job_id, trial(0, measured(5.0)))
    text = forged.format(listing=f"trials of {job_id} None None None by number") if "{" in forged else forged
    cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    with store.read() as session, pytest.raises(InvalidInput) as refusal:
        trials.page(session, job_id, TrialFilter(), cursor, 1)
    assert refusal.value.field == "cursor"


def test_the_curve_of_the_best_so_far_has_the_trials_that_were_better(store: Store) -> None:
    job_id = open_job(store)
    record(store, job_id, *(trial(i, measured(t) if t else failed()) for i, t in enumerate(TIMES)))
    with store.read() as session:
        curve = trials.best_so_far(session, job_id)
    assert curve == [(0, 5.0, None), (1, 3.0, None)]


def test_questions_about_an_unknown_job_are_refused(store: Store) -> None:
    with store.read() as session:
        for ask in (trials.outcome_counts, trials.best_so_far):
            with pytest.raises(NotFound, match="job-nothing"):
                ask(session, "job-nothing")
