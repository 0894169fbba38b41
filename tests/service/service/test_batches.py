"""Batches: jobs that share their findings, ladders that assign kernels to row counts, ends and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import Latch, evaluator, on_disk
from tests.service.service.killing import killed_afterwards
from tests.support.builders import spec
from tests.support.serving import running_service
from tests.support.waiting import wait_until
from tuner.core.access.caller import LOCAL, Caller, Role
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.trial.job import JobSpec, JobState, JobTerms, PriorsChoice
from tuner.core.trial.ladders.batch import MOST_SHARED, BatchRecord, BatchStep
from tuner.core.trial.ladders.ladder import Ladder, kernel_name
from tuner.errors import Conflict, Forbidden, InvalidInput, NotFound
from tuner.service import Service
from tuner.workers.simulated import evaluator as twin
from tuner.workers.simulated.library import library_us

pytestmark = pytest.mark.slow

ROWS = (4, 16, 48)
ROOT = Caller(owner="root", role=Role.ADMIN, token_id="tok-root")
ANN, BOB = (Caller(owner=name, role=Role.SUBMIT, token_id=f"tok-{name}") for name in ("ann", "bob"))


@pytest.fixture(autouse=True)
def slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the usual library faster than every kernel for pairs as small as these."""
    monkeypatch.setattr(twin, "library_us", lambda *asked: 4 * library_us(*asked))


def specs(*rows: int, trials: int = 7) -> list[JobSpec]:
    return [spec(m, trials=trials) for m in rows]


def finish(service: Service, batch_id: str) -> dict[int, Ladder]:
    wait_until(lambda: service.batches.get(batch_id).state.is_final)
    return service.batches.ladders(batch_id)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, BatchRecord, Ladder]]:
    """A finished batch whose searches used no priors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin, "library_us", lambda *asked: 4 * library_us(*asked))
        with running_service(tmp_path_factory.mktemp("batch") / "data") as service:
            fair = [replace(one, priors=PriorsChoice.NONE) for one in specs(*ROWS)]
            batch, is_new = service.batches.submit(fair)
            assert is_new
            ladder = finish(service, batch.id)[0]
            yield service, service.batches.get(batch.id), ladder


Answered = tuple[Service, BatchRecord, Ladder]


# In CI, tests/service/api/test_batches.py has a batch that answers every number of rows.
@pytest.mark.soak
def test_every_row_count_up_to_the_largest_gets_one_answer_with_its_figures(answered: Answered) -> None:
    _, batch, ladder = answered
    assert batch.state is JobState.SUCCEEDED
    covered = [m for rung in ladder.rungs for m in range(rung.m_lo, rung.m_hi + 1)]
    assert covered == list(range(1, max(ROWS) + 1))
    for rung in ladder.rungs:
        assert (rung.job_id is None) == (rung.m_hi not in ROWS)
        if rung.kernel is not None:
            kernel = ladder.kernels[rung.kernel]
            assert kernel.m_lo <= rung.m_lo <= rung.m_hi <= kernel.m_hi
            assert rung.speedup_ci95 is not None
            assert rung.loss is not None
            assert rung.loss <= ladder.slack
    assert len(ladder.kernels) == ladder.least > 0


def test_the_kernels_of_a_ladder_are_kept_and_are_those_that_were_measured(answered: Answered) -> None:
    service, batch, ladder = answered
    service.collect_garbage(0)
    assert all(service.artifact(str(kernel.artifact_digest)) for kernel in ladder.kernels)
    jobs = {job.id: job for job, _ in service.batches.jobs(batch.id).items}
    for rung in ladder.rungs:
        if rung.kernel is None or rung.job_id is None:
            continue
        workload = jobs[rung.job_id].spec.workload
        name = kernel_name(ladder.kernels[rung.kernel].candidate, workload)
        rows = {kernel_name(row.candidate, workload): row for row in service.best(rung.job_id).finals[1:]}
        assert rows[name].time_us == rung.time_us


def test_jobs_begin_with_what_others_of_their_ladder_found_and_try_it_at_the_end(answered: Answered) -> None:
    service, batch, _ = answered
    jobs = [job for job, _ in service.batches.jobs(batch.id).items]
    ids = {job.id for job in jobs}
    assert not service.priors(jobs[0].id)
    assert {use.prior.source for job in jobs[1:] for use in service.priors(job.id)} <= ids
    assert any(job.num_trials > job.spec.budget.trials for job in jobs), "none tried the results of the others"
    tried = [{trial.candidate for trial in service.trials(job.id, limit=100).items} for job in jobs]
    assert set.intersection(*tried) - {LIBRARY}, "no kernel was measured at all rows"


def test_a_batch_that_has_ended_is_not_ended_again(answered: Answered) -> None:
    service, batch, _ = answered
    with pytest.raises(Conflict, match="succeeded"):
        service.batches.cancel(batch.id)


def test_no_job_shares_before_all_of_its_ladder_have_searched(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    batch, _ = service.batches.submit(specs(16, 64))
    wait_until(latch.is_reached.is_set)
    first, second = (job for job, _ in service.batches.jobs(batch.id).items)
    assert (first.state, second.state) == (JobState.SEARCHING, JobState.QUEUED)
    service.submissions.pause(second.id, LOCAL, True)
    latch.is_open.set()
    wait_until(lambda: service.job(first.id).batch_step == BatchStep.SHARE)
    waiting = service.job(first.id)
    assert waiting.state is JobState.SEARCHING
    assert waiting.reason == f"it waits for {second.id} of its ladder, which is paused"
    found = service.batches.get(batch.id)
    assert (found.num_paused, found.num_trials) == (1, first.spec.budget.trials)
    budgets = first.spec.budget.trials + second.spec.budget.trials
    assert found.num_planned == budgets + 2 * MOST_SHARED, (
        "the second batch has its own job before it, and both share one"
    )
    service.submissions.pause(second.id, LOCAL, False)
    assert finish(service, batch.id)[0].rungs
    ended = service.batches.get(batch.id)
    assert (ended.num_paused, ended.num_planned) == (0, ended.num_trials)
    assert service.job(first.id).reason == ""


# In CI, tests/service/service/test_facade.py asks for an open and a finished problem again.
@pytest.mark.soak
def test_the_same_problems_asked_again_get_the_open_batch_and_later_a_new_one(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    batch, _ = service.batches.submit(specs(1, 16))
    again, is_new = service.batches.submit(specs(16, 1))
    assert (again.id, is_new) == (batch.id, False)
    more, is_new = service.batches.submit(specs(1, 16, 32))
    assert is_new
    first, second = ({job.id for job, _ in service.batches.jobs(one.id).items} for one in (batch, more))
    assert first < second, "the open jobs also belong to the new batch"
    latch.is_open.set()
    finish(service, batch.id)
    answer = finish(service, more.id)[0]
    assert {rung.m_hi for rung in answer.rungs} >= {1, 16, 32}
    later, is_new = service.batches.submit(specs(1, 16), reuse=True)
    assert is_new
    assert {job.id for job, _ in service.batches.jobs(later.id).items} == first
    assert finish(service, later.id)[0].rungs


def test_a_key_sent_again_gets_its_batch_and_with_another_body_a_refusal(serve: Serve) -> None:
    service = serve(Latch())
    batch, _ = service.batches.submit(specs(16), idempotency_key="k", body_digest="a")
    service.batches.cancel(batch.id)
    again, is_new = service.batches.submit(specs(16), idempotency_key="k", body_digest="a")
    assert (again.id, is_new) == (batch.id, False)
    with pytest.raises(InvalidInput, match="was used for a different body"):
        service.batches.submit(specs(16), idempotency_key="k", body_digest="b")


def test_only_its_owner_ends_a_batch_and_what_others_share_goes_on(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    batch, _ = service.batches.submit(specs(1, 16, 64), caller=ANN)
    shared, _ = service.submit(spec(16), caller=BOB)
    with pytest.raises(Forbidden, match="belongs to ann"):
        service.batches.cancel(batch.id, BOB)
    ended = service.batches.cancel(batch.id, ANN)
    assert ended.state is JobState.CANCELLED
    assert service.batches.cancel(batch.id, ANN).cancelled_at == ended.cancelled_at
    assert service.job(shared.id).owners == ("bob",)
    latch.is_open.set()
    wait_until(lambda: service.job(shared.id).state is JobState.SUCCEEDED)
    states = {job.spec.workload.tile_ops[0].m: job.state for job, _ in service.batches.jobs(batch.id).items}
    assert states == {1: JobState.CANCELLED, 16: JobState.SUCCEEDED, 64: JobState.CANCELLED}
    with pytest.raises(NotFound, match="has no result"):
        service.batches.ladders(batch.id)


@pytest.mark.parametrize("caller", [LOCAL, ANN], ids=["without tokens", "of one owner"])
def test_the_end_of_a_batch_leaves_jobs_that_were_asked_for_besides_it(serve: Serve, caller: Caller) -> None:
    service = serve(Latch())
    alone_before, _ = service.submit(spec(1), caller=caller)
    batch, _ = service.batches.submit(specs(1, 4, 16, 64), caller=caller)
    alone_behind, _ = service.submit(spec(4), caller=caller)
    other, _ = service.batches.submit(specs(16), caller=caller)

    def open_rows() -> set[int]:
        jobs = [job for job, _ in service.batches.jobs(batch.id).items]
        return {job.spec.workload.tile_ops[0].m for job in jobs if not job.state.is_final}

    service.batches.cancel(batch.id, caller)
    assert open_rows() == {1, 4, 16}
    service.batches.cancel(other.id, caller)
    assert open_rows() == {1, 4}, "no owner is left for the jobs that only the two batches had"
    for job in (alone_before, alone_behind):
        assert service.job(job.id).owners == ((caller.owner,) if caller.owner else ())


def test_of_a_job_that_two_owners_batches_have_each_withdraws_his_own_request(serve: Serve) -> None:
    service = serve(Latch())
    first, _ = service.batches.submit(specs(16, 64), caller=ANN)
    second, _ = service.batches.submit(specs(16), caller=BOB)
    (shared, _), *_ = service.batches.jobs(second.id).items
    service.batches.cancel(first.id, ROOT)
    assert service.job(shared.id).owners == ("bob",)
    service.batches.cancel(second.id, BOB)
    assert service.job(shared.id).state is JobState.CANCELLED


def test_a_batch_ends_its_search_at_the_last_deadline_of_its_open_jobs(serve: Serve) -> None:
    service = serve(Latch())
    alone, _ = service.submit(spec(16), terms=JobTerms(deadline_s=90.0))
    batch, _ = service.batches.submit(specs(16, 64), terms=JobTerms(deadline_s=60.0))
    assert batch.deadline_at == service.job(alone.id).deadline_at
    endless, _ = service.submit(spec(4))
    more, _ = service.batches.submit(specs(4, 64))
    assert more.deadline_at is None
    service.cancel(endless.id)
    assert service.batches.get(more.id).deadline_at is not None


def test_a_ladder_none_of_whose_jobs_succeeded_says_so(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    batch, _ = service.batches.submit(specs(1, 16))
    for job, _ in service.batches.jobs(batch.id).items:
        service.cancel(job.id)
    latch.is_open.set()  # the first job may have reached the card before it was cancelled
    assert finish(service, batch.id)[0].reason == "none of its jobs succeeded"
    assert service.batches.get(batch.id).state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("rows", "terms", "error", "words"),
    [
        ((), JobTerms(), InvalidInput, "use 1 to"),
        ((16, 16), JobTerms(), InvalidInput, "requested twice"),
        ((16,), JobTerms(priority=1), Forbidden, "only an admin"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_and_leaves_no_job(
    serve: Serve, rows: tuple[int, ...], terms: JobTerms, error: type[Exception], words: str
) -> None:
    service = serve()
    with pytest.raises(error, match=words):
        service.batches.submit(specs(*rows), terms=terms, caller=ANN)
    with pytest.raises(InvalidInput, match="simulated:a100"):
        service.batches.submit([spec(m, target_id="simulated:a100") for m in ROWS])
    assert not service.jobs().items


# In CI, test_kill.py kills servers.
@pytest.mark.soak
def test_a_server_that_is_killed_goes_on_with_a_batch_where_it_was(tmp_path: Path, serve: Serve) -> None:
    service = serve(Latch())
    batch, _ = service.batches.submit(specs(16, 64))
    service.close()
    with killed_afterwards(tmp_path / "data", trial_s=0.02):  # when the first job has finished its search, and waits
        wait_until(lambda: int(str(on_disk(tmp_path / "data", "select count(*) from trials"))) >= 9)
    service = serve(evaluator())
    ladder = finish(service, batch.id)[0]
    assert [rung.m_hi for rung in ladder.rungs if rung.job_id] == [16, 64]
    for job, _ in service.batches.jobs(batch.id).items:
        numbers = [trial.number for trial in service.trials(job.id, limit=200).items]
        assert numbers == list(range(len(numbers)))
        candidates = [trial.candidate for trial in service.trials(job.id, limit=200).items]
        assert len(set(candidates)) == len(candidates), "no candidate was tried twice"


def test_a_ladder_is_answered_before_the_next_job_begins(serve: Serve) -> None:
    service = serve()
    batch, _ = service.batches.submit(specs(4, 16), terms=JobTerms(priority=2), caller=ROOT)
    long, _ = service.submit(spec(64, trials=400))
    finish(service, batch.id)
    assert not service.job(long.id).state.is_final


def test_a_batch_that_is_asked_for_again_adds_its_labels_and_the_higher_priority(serve: Serve) -> None:
    service = serve(Latch())
    first, _ = service.batches.submit(specs(4, 16), terms=JobTerms(labels=("first",), priority=-8))
    again, is_new = service.batches.submit(specs(4, 16), terms=JobTerms(labels=("second",), priority=-2))
    assert (again.id, is_new) == (first.id, False)
    found = [job for job, _ in service.batches.jobs(first.id).items]
    assert {(job.labels, job.priority) for job in found} == {(("first", "second"), -2)}
