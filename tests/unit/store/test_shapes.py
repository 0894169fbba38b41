from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.between import between
from tests.support.builders import BEST, spec
from tuner.core.trial.job import JobState
from tuner.core.trial.questions import Machine, Question, log_sizes
from tuner.core.trial.reports.same_kernels import lists_of
from tuner.store import Store
from tuner.store.admin import removal
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.results.result_keys import form_digest
from tuner.store.results.shapes import ShapeIndex


def keep(store: Store, m: int) -> str:
    with store.write() as session:
        job = jobs.insert(session, spec(m), 1.0)
        for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
            jobs.set_state(session, job.id, state, 2.0)
        bests.insert(session, replace(BEST, job_id=job.id))
    return job.id


def nearest(store: Store, shapes: ShapeIndex, m: int) -> str | None:
    asked = spec(m)
    question = Question(workload=asked.workload, target_id=asked.target_id, objective=asked.objective)
    with store.read() as session:
        found = bests.closest(session, question, shapes)
    return found[0].id if found else None


def test_what_is_nearest_follows_results_that_come_and_go(store: Store) -> None:
    shapes = ShapeIndex()
    assert nearest(store, shapes, 48) is None
    far = keep(store, 16)
    assert nearest(store, shapes, 48) == far
    near = keep(store, 64)
    assert nearest(store, shapes, 48) == near
    with store.write() as session:
        removal.mark(session, near, 3.0, "for a test")
    assert nearest(store, shapes, 48) == far
    nearer = keep(store, 49)  # as many results as before one was removed
    assert nearest(store, shapes, 48) == nearer == nearest(store, ShapeIndex(), 48)


@pytest.mark.slow
def test_many_results_that_come_at_once_are_all_taken_in(store: Store) -> None:
    shapes = ShapeIndex()
    first = keep(store, 1000)
    assert nearest(store, shapes, 900) == first
    kept = {m: keep(store, m) for m in range(1, 12)}
    assert nearest(store, shapes, 12) == kept[11]


def test_a_layers_form_has_any_context_and_its_sizes_have_the_context() -> None:
    """The cache that its qkv writes to is the attention's, so both contain the longest context."""
    short, long = between(), between(sizes={"max_length": 1024})
    assert form_digest(short) == form_digest(long) == form_digest(between(sequences=8))
    products = replace(short, ops=short.tile_ops)
    assert len({form_digest(one) for one in (short, between(rotary=False), between(num_behind=3), products)}) == 4
    assert [log_sizes(one)[3:] for one in (short, long)] == [(2, 8, 9), (2, 8, 10)]
    first = replace(short.tile_ops[0], name="first", n=256, rotary=None)
    qkv = replace(short.tile_ops[0], source="first", norm="first")
    further = replace(short, ops=(first, qkv, *short.ops[1:]))
    assert log_sizes(further) == (2, 8, 9, 2, 8, 8), "an attention behind two products is one of the two"


def test_jobs_of_any_form_are_ordered_by_their_distance_and_the_newest_of_equals_is_first(store: Store) -> None:
    kept = {m: keep(store, m) for m in (64, 16, 32)}
    again = keep(store, 16)
    with store.read() as session:
        seq = {job_id: jobs.row_of(session, job_id).seq for job_id in (*kept.values(), again)}
        asked = log_sizes(spec(16).workload)
        target = spec(16).target_id
        assert store.shapes.near(session, target, asked, 3) == [seq[again], seq[kept[16]], seq[kept[32]]]
        assert store.shapes.near(session, target, asked[:3], 1) == [seq[again]]
        assert store.shapes.near(session, "another", asked, 3) == []


def test_a_result_of_the_same_kernels_under_an_older_version_is_an_exact_answer(store: Store) -> None:
    old, *_, new = next(one for one in lists_of("gemm") if len(one) > 1)
    asked = spec(16)
    with store.write() as session:
        job = jobs.insert(session, asked, 1.0)
        for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
            jobs.set_state(session, job.id, state, 2.0)
        bests.insert(session, replace(BEST, job_id=job.id, environment=replace(BEST.environment, kernel_version=old)))
    question = Question(workload=asked.workload, target_id=asked.target_id, objective=asked.objective)
    found = {}
    for version in (new, "another"):
        with store.read() as session:
            there = bests.closest(session, replace(question, machine=Machine(kernel_version=version)), store.shapes)
        assert there is not None
        found[version] = Machine(kernel_version=version).differences(there[1].environment)
    assert (found[new], len(found["another"])) == ([], 1)
