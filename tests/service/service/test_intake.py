"""Jobs submitted at the same time share a transaction without affecting each other."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.service.helpers import evaluator
from tests.support.builders import spec
from tuner.core.access.caller import Caller, Role
from tuner.core.trial.job import JobTerms
from tuner.dispatch import LocalDispatcher
from tuner.errors import Forbidden, InvalidInput, StoreUnavailable
from tuner.service import Service
from tuner.service.submission import intake
from tuner.service.submission.submissions import Submission
from tuner.store import Store
from tuner.store.access import audit
from tuner.store.jobs import events, jobs

LIMIT_S = 60
ALICE = Caller(owner="alice", role=Role.SUBMIT, token_id="tok-1", address="127.0.0.1")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that is not started, so its jobs stay queued."""
    service = Service(Store.open(tmp_path / "data", lock_patience_s=20), LocalDispatcher([evaluator()]))
    yield service
    service.close()


def ids(service: Service) -> set[str]:
    return {job.id for job in service.jobs(limit=100).items}


def test_what_comes_while_the_database_is_busy_is_written_together(service: Service) -> None:
    store = service._store
    with store.write():
        answers = [service.intake.submit(Submission(spec=spec(m), caller=ALICE)) for m in range(16, 36)]
        before = store.commits.num_writes
    found = [answer.result(LIMIT_S) for answer in answers]
    assert all(is_new for _, is_new in found)
    assert {job.id for job, _ in found} == ids(service)
    assert [job.spec.workload.tile_ops[0].m for job, _ in found] == list(range(16, 36))
    # This test's transaction, that of the first request, and one for all others.
    assert store.commits.num_writes - before <= 3


def test_the_same_problem_twice_in_one_transaction_is_one_job(service: Service) -> None:
    labelled = Submission(spec=spec(16), caller=ALICE, terms=JobTerms(labels=("nightly",)))
    first, second = service.submissions.submit_together([Submission(spec=spec(16)), labelled])
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert (first[0].id, first[1], second[1]) == (second[0].id, True, False)
    assert (second[0].owners, second[0].labels) == (("alice",), ("nightly",))


def test_one_that_cannot_be_taken_is_refused_and_the_others_are_not(service: Service) -> None:
    high = Submission(spec=spec(32), caller=ALICE, terms=JobTerms(priority=5))
    unserved = Submission(spec=spec(48, target_id="simulated:a100"))
    good = [Submission(spec=spec(m), caller=ALICE, idempotency_key=f"key-{m}") for m in (16, 64)]
    outcomes = service.submissions.submit_together([good[0], high, unserved, good[1]])
    assert [type(one) for one in outcomes] == [tuple, Forbidden, InvalidInput, tuple]
    assert {one[0].id for one in outcomes if isinstance(one, tuple)} == ids(service)


def test_a_key_with_another_body_changes_nothing_of_what_came_with_it(service: Service) -> None:
    first = service.submissions.submit(Submission(spec=spec(16), idempotency_key="nightly", body_digest="one"))[0]
    wrong = Submission(spec=spec(32), idempotency_key="nightly", body_digest="other")
    again = Submission(spec=spec(16), idempotency_key="nightly", body_digest="one")
    refused, known, new = service.submissions.submit_together([wrong, again, Submission(spec=spec(64))])
    assert isinstance(refused, InvalidInput)
    assert not isinstance(known, Exception)
    assert not isinstance(new, Exception)
    assert known == (first, False)
    assert ids(service) == {first.id, new[0].id}


def test_all_are_told_when_the_database_takes_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(jobs, "open_among", refuse)
    answers = [service.intake.submit(Submission(spec=spec(m))) for m in (16, 32, 64)]
    for answer in answers:
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            answer.result(LIMIT_S)
    monkeypatch.undo()
    assert service.intake.submit(Submission(spec=spec(16))).result(LIMIT_S)[1]


def test_many_that_wait_for_a_locked_database_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_TOGETHER", 2)
    service = Service(Store.open(tmp_path / "data", lock_patience_s=0.2), LocalDispatcher([evaluator()]))
    with closing(sqlite3.connect(tmp_path / "data" / "tuner.db", isolation_level=None)) as stranger:
        stranger.execute("begin immediate")
        begin = time.monotonic()
        answers = [service.intake.submit(Submission(spec=spec(m))) for m in range(16, 80)]
        answered = [answer.exception(LIMIT_S) for answer in answers]
        took_s = time.monotonic() - begin
        stranger.execute("rollback")
    assert all(isinstance(one, StoreUnavailable) for one in answered)
    assert took_s < 3, "each of 32 transactions waited for the lock, one after the other"
    service.close()


def test_what_was_asked_for_before_the_end_is_written(tmp_path: Path) -> None:
    service = Service(Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]))
    answers = [service.intake.submit(Submission(spec=spec(m))) for m in (16, 32, 64)]
    service.close()
    asked = {answer.result(0)[0].id for answer in answers}
    store = Store.open(tmp_path / "data")
    with store.read() as session:
        assert {job_id for job_id in asked if jobs.get(session, job_id)} == asked
    store.close()


def test_what_is_written_at_the_end_of_a_transaction_is_whole_and_in_order(service: Service) -> None:
    outcomes = service.submissions.submit_together([Submission(spec=spec(m), caller=ALICE) for m in (16, 32, 48)])
    found = [one[0].id for one in outcomes if isinstance(one, tuple)]
    with service._store.read() as session:
        entries = audit.page(session, None, 10).items
        happened = [events.after(session, job_id, 0, 10) for job_id in found]
    assert [(one.action, one.subject) for one in reversed(entries)] == [("job.submit", job_id) for job_id in found]
    assert [[one.kind for one in of_job] for of_job in happened] == [["state"]] * 3
    ids_of_events = [of_job[0].id for of_job in happened]
    assert ids_of_events == sorted(ids_of_events)
