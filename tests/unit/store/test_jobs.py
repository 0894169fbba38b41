from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from tests.support.attentions import attention
from tests.support.builders import BEST, spec
from tuner.core.problem.unknown_op import UnknownOp
from tuner.core.problem.workload import MAX_OPS
from tuner.core.trial.job import Budget, JobState, JobTerms
from tuner.errors import Conflict, InvalidInput
from tuner.store import Store
from tuner.store.jobs import jobs, queue
from tuner.store.results import bests


def test_one_problem_has_at_most_one_open_job(store: Store) -> None:
    with store.write() as session:
        first = jobs.insert(session, spec(seed=1), 1.0)
    with pytest.raises(IntegrityError), store.write() as session:
        jobs.insert(session, spec(seed=2), 2.0)
    with store.write() as session:
        jobs.set_state(session, first.id, JobState.CANCELLED, 3.0)
        jobs.insert(session, spec(seed=2), 4.0)


def test_a_job_that_was_begun_comes_before_those_that_wait_and_these_by_age(store: Store) -> None:
    with store.write() as session:
        old, young = jobs.insert(session, spec(16), 1.0), jobs.insert(session, spec(32), 2.0)
        assert queue.next_open(session, "simulated:h200", 9.0) == old
        begun = jobs.set_state(session, young.id, JobState.SEARCHING, 3.0)
        assert queue.next_open(session, "simulated:h200", 9.0) == begun
        assert queue.next_open(session, "h200", 9.0) is None


def test_a_worker_that_lacks_a_kind_of_op_is_not_given_its_jobs_and_they_keep_none_of_others_from_it(
    store: Store,
) -> None:
    target, now = "simulated:h200", 9.0
    with store.write() as session:
        asked = replace(spec(16), workload=attention())
        first = jobs.insert(session, asked, 1.0, terms=JobTerms(priority=5))
        product = jobs.insert(session, spec(32), 2.0)
        assert queue.next_open(session, target, now) == first
        assert queue.next_open(session, target, now, kinds=["attention", "gemm"]) == first
        assert queue.next_open(session, target, now, kinds=["gemm"]) == product
        assert queue.is_outranked(session, product, besides=[])
        assert not queue.is_outranked(session, product, besides=[], kinds=["gemm"])
        late = replace(asked, seed=1, budget=Budget(trials=7))
        jobs.set_state(session, first.id, JobState.CANCELLED, 3.0)
        overdue = jobs.insert(session, late, 4.0, terms=JobTerms(deadline_s=1.0))
        assert queue.next_open(session, target, now, kinds=["gemm"]) == overdue, "so that it ends"


def test_a_job_may_need_any_number_of_kinds_with_long_names(store: Store) -> None:
    needed = [f"activation:{number}{'a' * 99}" for number in range(MAX_OPS)]
    ops = tuple(UnknownOp.of({"op": one, "name": one[:20]}, one) for one in needed)
    with store.write() as session:
        job = jobs.insert(session, replace(spec(16), workload=replace(attention(), ops=ops)), 1.0)
        assert queue.next_open(session, job.spec.target_id, 9.0, kinds=["gemm", *needed[1:]]) is None
        assert queue.next_open(session, job.spec.target_id, 9.0, kinds=["gemm", *needed]) == job


def test_an_illegal_step_is_refused(store: Store) -> None:
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        with pytest.raises(Conflict, match="queued cannot become succeeded"):
            jobs.set_state(session, job.id, JobState.SUCCEEDED, 2.0)


def test_pages_list_the_newest_first_and_filter_by_state(store: Store) -> None:
    with store.write() as session:
        ids = [jobs.insert(session, spec(m), float(m)).id for m in (16, 32, 64)]
        jobs.set_state(session, ids[1], JobState.CANCELLED, 99.0)
    with store.read() as session:
        first = jobs.page(session, None, 2, jobs.JobFilter())
        assert [job.id for job in first.items] == [ids[2], ids[1]]
        last = jobs.page(session, first.next_cursor, 2, jobs.JobFilter())
        assert ([job.id for job in last.items], last.next_cursor) == ([ids[0]], None)
        assert [job.id for job in jobs.page(session, None, 9, jobs.JobFilter(state=JobState.CANCELLED)).items] == [
            ids[1]
        ]
        with pytest.raises(InvalidInput, match="another listing"):
            jobs.page(session, first.next_cursor, 2, jobs.JobFilter(state=JobState.CANCELLED))


def test_a_second_request_adds_its_labels_and_the_higher_priority(store: Store) -> None:
    first = JobTerms(priority=-1, project="decode", labels=("nightly",), deadline_s=60.0)
    second = JobTerms(priority=2, project="other", labels=("release", "nightly", "h200"))
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0, terms=first)
        joined = jobs.attach(session, job.id, "", second, 2.0)
    with store.read() as session:
        assert jobs.get(session, job.id) == joined
        found = jobs.page(session, None, 9, jobs.JobFilter(label="release")).items
    assert [one.id for one in found] == [job.id]
    assert (joined.priority, joined.labels, joined.owners) == (2, ("h200", "nightly", "release"), ())
    assert (joined.project, joined.deadline_at) == (job.project, job.deadline_at)
    with store.write() as session:
        assert jobs.attach(session, job.id, "", JobTerms(priority=-5), 3.0).priority == 2


def test_of_several_jobs_that_solved_a_problem_the_best_is_found(store: Store) -> None:
    with store.write() as session:
        found = []
        for trials in (60, 1):
            job = jobs.insert(session, spec(trials=trials), 1.0)
            for state in (JobState.SEARCHING, JobState.FINALS):
                jobs.set_state(session, job.id, state, 2.0)
            bests.insert(session, replace(BEST, job_id=job.id))
            jobs.set_state(session, job.id, JobState.SUCCEEDED, 3.0)
            found.append(job.id)
    with store.read() as session:
        solved = jobs.find_succeeded(session, spec().problem_digest)
    assert solved is not None
    assert solved.id == found[0]
