"""Scheduling of jobs: priorities, fair shares, deadlines, pauses; no trial is lost when a job yields."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import Latch, evaluator, finish
from tests.support.builders import spec
from tests.support.queries import statements_of
from tests.support.waiting import wait_until
from tuner.core.access.caller import Caller, Role
from tuner.core.trial.job import JobState, JobTerms
from tuner.core.trial.ladders.batch import FINALS_S
from tuner.core.trial.records import JobRecord
from tuner.errors import Conflict, Forbidden, InvalidInput
from tuner.service import Service
from tuner.service.concurrency.claims import Claims
from tuner.service.runner import turns
from tuner.service.runner.turns import Turn
from tuner.store import Store
from tuner.store.jobs import jobs, queue

pytestmark = pytest.mark.slow

ALICE = Caller(owner="alice", role=Role.SUBMIT, token_id="tok-a")
BOB = Caller(owner="bob", role=Role.SUBMIT, token_id="tok-b")
TARGET = "simulated:h200"


def is_whole(service: Service, job: JobRecord, num_trials: int) -> bool:
    """Whether each trial of the budget ran exactly once."""
    trials = service.trials(job.id, limit=500).items
    return [one.number for one in trials] == list(range(num_trials)) and len({one.candidate for one in trials}) == len(
        trials
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "data")


def test_the_owner_who_used_the_gpu_least_is_next_and_priority_goes_before_that(store: Store) -> None:
    with store.write() as session:
        first = jobs.insert(session, spec(16), 1.0, "alice")
        second = jobs.insert(session, spec(32), 2.0, "alice")
        third = jobs.insert(session, spec(48), 3.0, "bob")
        assert queue.next_open(session, TARGET, 4.0) == first
        jobs.set_state(session, first.id, JobState.SEARCHING, 4.0)
        jobs.row_of(session, first.id).search_s = 5.0
        assert queue.next_open(session, TARGET, 9.0) == third, "alice has had five seconds"
        assert queue.next_open(session, TARGET, 9.0, besides=[third.id]) == jobs.get(session, first.id)
        jobs.set_state(session, first.id, JobState.CANCELLED, 9.0)
        jobs.row_of(session, third.id).search_s = 1.0
        long_after = 9.0 + queue.SHARE_WINDOW_S + 1
        assert queue.next_open(session, TARGET, 10.0) == jobs.get(session, third.id)
        assert queue.next_open(session, TARGET, long_after) == second, "earlier use does not count"
        urgent = jobs.insert(session, spec(64), 5.0, "alice", JobTerms(priority=3))
        assert queue.next_open(session, TARGET, 10.0) == urgent
        assert queue.is_outranked(session, second, besides=[first.id])
        assert not queue.is_outranked(session, urgent, besides=[])
        assert not queue.is_outranked(session, second, besides=[urgent.id])
        jobs.attach(session, second.id, "", JobTerms(priority=3), 6.0)
        assert not queue.is_outranked(session, second, besides=[]), "it was requested again with a higher priority"
        jobs.row_of(session, second.id).priority = 0
        jobs.set_paused(session, urgent.id, True, 10.0)
        assert not queue.is_outranked(session, second, besides=[])
        assert queue.next_open(session, TARGET, long_after) == second
    store.close()


def test_a_turn_is_over_when_another_owner_has_waited_for_as_long_as_a_turn_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_CHECK_S", 0.0)
    with store.write() as session:
        hers = jobs.insert(session, spec(16), 1.0, "alice")
        jobs.set_state(session, hers.id, JobState.SEARCHING, 2.0)
        jobs.row_of(session, hers.id).search_s = 5.0
    turn = Turn(store, Claims(), hers, lambda: 9.0)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    assert not turn.is_over(), "nobody waits"
    with store.write() as session:
        his = jobs.insert(session, spec(32), 3.0, "bob")
    assert turn.is_over()
    assert not Turn(store, Claims(), his, lambda: 9.0).is_over()
    monkeypatch.setattr(turns, "TURN_S", 30.0)
    assert not turn.is_over()
    store.close()


def test_a_queued_job_whose_deadline_passed_is_next_so_that_it_ends(store: Store) -> None:
    with store.write() as session:
        jobs.insert(session, spec(16), 1.0)
        late = jobs.insert(session, spec(32), 2.0, "", JobTerms(deadline_s=5.0, priority=-5))
        assert queue.next_open(session, TARGET, 6.9) != late
        assert queue.next_open(session, TARGET, 7.0) == late
    store.close()


def one_card(target_id: str) -> int:
    assert target_id == TARGET
    return 1


def test_a_place_in_the_queue_counts_who_is_before_and_the_pace_of_earlier_jobs(store: Store) -> None:
    with store.write() as session:
        done = jobs.insert(session, spec(16), 1.0)
        jobs.set_state(session, done.id, JobState.SEARCHING, 1.0)
        first, second = jobs.insert(session, spec(32, trials=10), 2.0), jobs.insert(session, spec(48, trials=10), 3.0)
        assert queue.place(session, second.id, one_card, 0.0) == (2, None)
        row = jobs.row_of(session, done.id)
        row.search_s, row.num_measured = 20.0, 10
        jobs.set_state(session, done.id, JobState.FINALS, 4.0)
        jobs.set_state(session, done.id, JobState.SUCCEEDED, 4.0)
        assert queue.place(session, second.id, one_card, 0.0) == (1, pytest.approx(2 * (20.0 + FINALS_S)))
        jobs.held_finals(session, done.id, 5.0)
        assert queue.place(session, second.id, one_card, 0.0) == (1, pytest.approx(2 * 25.0))
        assert queue.place(session, second.id, lambda _: 2, 0.0) == (1, pytest.approx(25.0 / 2 + 25.0))
        assert queue.place(session, second.id, lambda _: 0, 0.0) == (1, None), "no card works"
        jobs.set_state(session, first.id, JobState.SEARCHING, 5.0)
        assert queue.place(session, first.id, one_card, 0.0) == (0, pytest.approx(25.0))
        jobs.set_state(session, first.id, JobState.FINALS, 6.0)
        assert queue.place(session, first.id, one_card, 0.0) == (0, pytest.approx(5.0)), "the rest of its budget is not"
        assert queue.place(session, done.id, one_card, 0.0) == (None, None)
    store.close()


def test_who_waits_behind_a_running_job_is_said_to_end_after_it(store: Store) -> None:
    with store.write() as session:
        done = jobs.insert(session, spec(16), 0.0)
        for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
            jobs.set_state(session, done.id, state, 0.0)
        row = jobs.row_of(session, done.id)
        row.search_s, row.num_measured, row.finals_s = 1.0, 10, 5.0
        running, waiting = (jobs.insert(session, spec(m, trials=10), 0.0) for m in (32, 48))
        jobs.set_state(session, running.id, JobState.SEARCHING, 1.0)
        row = jobs.row_of(session, running.id)
        row.search_s, row.num_measured = 100.0, 5  # its trials take 20 s, those of earlier jobs took 0.1 s
        left_s = jobs.get(session, running.id).eta_s(0.0)
        assert left_s == pytest.approx(100.0)
        assert queue.place(session, running.id, one_card, 0.0) == (0, pytest.approx(100.0 + 5.0))
        assert queue.place(session, waiting.id, one_card, 0.0) == (1, pytest.approx(105.0 + 1.0 + 5.0))
    store.close()


def test_no_job_is_said_to_be_searched_beyond_its_deadline(store: Store) -> None:
    with store.write() as session:
        done = jobs.insert(session, spec(16), 0.0)
        for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
            jobs.set_state(session, done.id, state, 0.0)
        row = jobs.row_of(session, done.id)
        row.search_s, row.num_measured, row.finals_s = 20.0, 10, 5.0
        due_soon, due_later = JobTerms(deadline_s=8.0), JobTerms(deadline_s=30.0)
        first = jobs.insert(session, spec(32, trials=10), 0.0, "", due_soon)
        second, third = (jobs.insert(session, spec(m, trials=10), 0.0, "", due_later) for m in (48, 64))
        assert queue.place(session, first.id, one_card, 2.0) == (0, pytest.approx(6.0 + 5.0))
        assert queue.place(session, second.id, one_card, 2.0) == (1, pytest.approx(28.0 + 5.0)), "begun, it has finals"
        assert queue.place(session, third.id, one_card, 2.0) == (2, pytest.approx(28.0)), "it fails in the queue"
    store.close()


def test_a_job_of_higher_priority_takes_the_card_and_the_other_one_goes_on_where_it_was(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.turns._CHECK_S", 0.0)
    latch = Latch(num_free=2)
    service = serve(latch)
    slow, _ = service.submit(spec(16, trials=20))
    wait_until(lambda: service.job(slow.id).num_trials >= 2)
    urgent, _ = service.submit(spec(32, trials=6), terms=JobTerms(priority=1))
    latch.is_open.set()
    ended, last = finish(service, urgent), finish(service, slow)
    assert (ended.state, last.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert ended.finished_at is not None
    recorded_at = [one.finished_at for one in service.trials(slow.id, limit=500).items]
    assert recorded_at[-1] > ended.finished_at, "the first one kept the card"
    assert is_whole(service, slow, 20)


# In CI, other tests have the end of a turn and who is next.
@pytest.mark.soak
def test_two_owners_share_one_card(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.service.runner.turns._CHECK_S", 0.0)
    monkeypatch.setattr("tuner.service.runner.turns.TURN_S", 0.5)
    latch = Latch(num_free=2, latency_s=0.1)
    service = serve(latch)
    alice, _ = service.submit(spec(16, trials=14), caller=ALICE)
    wait_until(lambda: service.job(alice.id).num_trials >= 2)
    bob, _ = service.submit(spec(32, trials=14), caller=BOB)
    latch.is_open.set()
    assert [finish(service, job).state for job in (alice, bob)] == [JobState.SUCCEEDED] * 2
    hers, his = ([one.finished_at for one in service.trials(job.id, limit=500).items] for job in (alice, bob))
    assert his[0] < hers[-1], "the first one kept the card"
    assert hers[2] < his[-1], "the second one kept the card"
    assert is_whole(service, alice, 14)
    assert is_whole(service, bob, 14)


def test_a_paused_job_waits_with_its_trials_and_goes_on_when_it_is_resumed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.turns._CHECK_S", 0.0)
    latch = Latch(num_free=3)
    service = serve(latch)
    job, _ = service.submit(spec(trials=20), caller=ALICE)
    wait_until(lambda: service.job(job.id).num_trials >= 3)
    with pytest.raises(Forbidden):
        service.submissions.pause(job.id, BOB, True)
    assert service.submissions.pause(job.id, ALICE, True).is_paused
    latch.is_open.set()
    other = finish(service, service.submit(spec(32, trials=3))[0])
    assert other.state is JobState.SUCCEEDED
    paused = service.job(job.id)
    assert (paused.state, paused.reason) == (JobState.SEARCHING, "it is paused")
    time.sleep(0.2)
    assert service.job(job.id).num_trials == paused.num_trials
    service.submissions.pause(job.id, ALICE, False)
    assert finish(service, job).state is JobState.SUCCEEDED
    assert is_whole(service, job, 20)
    with pytest.raises(Conflict, match=r"has ended \(succeeded\), and can neither be paused nor resumed$"):
        service.submissions.pause(job.id, ALICE, True)


def test_at_its_deadline_a_search_ends_with_what_it_has_and_a_waiting_job_fails(serve: Serve) -> None:
    service = serve(evaluator(latency_s=0.05))
    job, _ = service.submit(spec(16, trials=2000), terms=JobTerms(deadline_s=4.0))
    waiting, _ = service.submit(spec(32, trials=3), terms=JobTerms(deadline_s=0.2))
    ended, late = finish(service, job), finish(service, waiting)
    assert (ended.state, 1 < ended.num_trials < 100) == (JobState.SUCCEEDED, True)
    assert (late.state, late.reason) == (JobState.FAILED, "its deadline passed while it waited")


def test_what_failed_or_was_cancelled_is_tried_again_on_its_terms(serve: Serve) -> None:
    service = serve(evaluator(latency_s=0.05))
    terms = JobTerms(project="llama", labels=("nightly",), priority=2)
    job, _ = service.submit(spec(trials=200), terms=terms)
    with pytest.raises(Conflict):
        service.submissions.retry(job.id, ALICE)
    service.cancel(job.id)
    again, is_new = service.submissions.retry(job.id, ALICE)
    assert (is_new, again.id != job.id, again.project, again.labels) == (True, True, "llama", ("nightly",))
    assert (again.owners, again.priority) == (("alice",), 0)
    with pytest.raises(Forbidden, match="above 0"):
        service.submit(spec(64), caller=ALICE, terms=JobTerms(priority=1))
    service.cancel(again.id)


def test_the_places_of_a_page_are_those_of_its_jobs_and_read_a_long_queue_once(store: Store) -> None:
    with store.write() as session:
        done = jobs.insert(session, spec(16), 1.0)
        jobs.set_state(session, done.id, JobState.SEARCHING, 1.0)
        row = jobs.row_of(session, done.id)
        row.search_s, row.num_measured = 20.0, 10
        jobs.set_state(session, done.id, JobState.FINALS, 4.0)
        jobs.set_state(session, done.id, JobState.SUCCEEDED, 4.0)
        waiting = [
            jobs.insert(session, spec(16 * (1 + seed)), 2.0, "", JobTerms(priority=-(seed % 3), deadline_s=50.0 * seed))
            for seed in range(1, 40)
        ]
        jobs.set_paused(session, waiting[5].id, True, 5.0)
        jobs.set_state(session, waiting[7].id, JobState.SEARCHING, 5.0)
        asked = [jobs.get(session, job.id) for job in (done, *waiting)]
        with statements_of(store.engine) as statements:
            found = queue.places(session, asked, one_card, 3.0)
        assert sum("FROM jobs" in one for one in statements) == 2, statements
        for job in asked:
            assert found[job.id] == queue.place(session, job.id, one_card, 3.0)
        assert found[done.id] == found[waiting[5].id] == (None, None)
        queued = [job for job in asked if job.state is JobState.QUEUED and not job.is_paused]
        places = [found[job.id][0] for job in sorted(queued, key=lambda job: -job.priority)]
        assert places == sorted(set(range(38)) - {places_of_begun(waiting)})
    store.close()


def places_of_begun(waiting: list[JobRecord]) -> int:
    """The position of the started job, by priority and age."""
    order = sorted((job for index, job in enumerate(waiting) if index != 5), key=lambda job: -job.priority)
    return [job.id for job in order].index(waiting[7].id)


def test_who_joins_a_job_uses_up_no_label_of_its_owner(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)

    def ask(caller: Caller, *labels: str) -> JobRecord:
        return service.submit(spec(trials=2), caller=caller, terms=JobTerms(labels=labels))[0]

    job = ask(ALICE, "first")
    joined = ask(BOB, *(f"b{number}" for number in range(16)))
    assert joined.id == job.id
    with pytest.raises(InvalidInput, match="would have 17 of your labels"):
        ask(BOB, "one more")
    own = ask(ALICE, *(f"a{number}" for number in range(15)))
    assert len(own.labels) == 32
    with pytest.raises(InvalidInput, match="would have 17 of your labels"):
        ask(ALICE, "one more")
    latch.is_open.set()
