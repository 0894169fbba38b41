from __future__ import annotations

import threading

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import Latch, evaluator, finish
from tests.support.builders import spec
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.job import JobState
from tuner.dispatch import LocalDispatcher
from tuner.errors import InvalidInput, NotFound, WorkerError
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator


def test_the_same_open_problem_answers_the_job_that_exists(serve: Serve) -> None:
    service = serve(Latch())
    job, is_new = service.submit(spec(seed=1, trials=5))
    again, is_new_again = service.submit(spec(seed=2, trials=9))
    assert (is_new, is_new_again, again.id) == (True, False, job.id)
    assert service.submit(spec(32))[0].id != job.id


@pytest.mark.slow
def test_a_finished_problem_gives_a_new_job_unless_the_result_may_be_reused(serve: Serve) -> None:
    service = serve()
    job = finish(service, service.submit(spec(trials=3))[0])
    assert service.submit(spec(trials=3), reuse=True) == (job, False)
    other, is_new = service.submit(spec(trials=3))
    assert (is_new, other.id != job.id) == (True, True)
    newest = finish(service, other)
    assert service.submit(spec(trials=3), reuse=True) == (newest, False)


def test_an_idempotency_key_makes_one_job_even_after_it_has_ended(serve: Serve) -> None:
    service = serve()
    job, _ = service.submit(spec(trials=3), idempotency_key="k", body_digest="a")
    finish(service, job)
    again, is_new = service.submit(spec(trials=3), idempotency_key="k", body_digest="a")
    assert (again.id, is_new) == (job.id, False)
    with pytest.raises(InvalidInput) as refusal:
        service.submit(spec(trials=3), idempotency_key="k", body_digest="b")
    assert refusal.value.field == "Idempotency-Key"


def test_the_same_request_from_many_threads_makes_one_job(serve: Serve) -> None:
    service = serve(Latch())
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(service.submit(spec()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1


@pytest.mark.parametrize(("target_id", "remedy"), [("h200", "use one of simulated:h200"), ("z80", "use one of a100")])
def test_a_target_that_nobody_serves_is_refused_and_makes_no_job(serve: Serve, target_id: str, remedy: str) -> None:
    service = serve()
    with pytest.raises(InvalidInput, match=remedy):
        service.submit(spec(target_id=target_id))
    assert service.jobs().items == []


def test_without_a_worker_no_job_is_taken(store: Store) -> None:
    service = Service(store, LocalDispatcher([]))
    with pytest.raises(InvalidInput, match="start one with --gpu"):
        service.submit(spec())
    assert service.targets() == []


# In CI, tests/service/dispatch/test_local.py has targets that work side by side.
@pytest.mark.soak
def test_each_target_works_off_its_own_jobs(serve: Serve) -> None:
    service = serve(evaluator(), SimulatedEvaluator(parse_target("simulated:a40")))
    jobs = [service.submit(spec(trials=3, target_id=f"simulated:{gpu}"))[0] for gpu in ("h200", "a40")]
    names = [service.best(finish(service, job).id).environment.gpu_name for job in jobs]
    assert names == ["simulated NVIDIA H200", "simulated NVIDIA A40, by its data sheet"]


def test_events_tell_a_whole_job_in_order_and_can_be_resumed(serve: Serve) -> None:
    service = serve()
    job = finish(service, service.submit(spec(trials=12))[0])
    seen = service.events(job.id)
    states = [event.data["state"] for event in seen if event.kind == "state"]
    assert states == ["queued", "searching", "finals", "succeeded"]
    assert [event.data["number"] for event in seen if event.kind == "trial"] == list(range(12))
    assert [event.id for event in seen] == sorted({event.id for event in seen})
    assert service.events(job.id, seen[4].id) == seen[5:]


def test_who_listens_is_woken_by_an_event(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    job, _ = service.submit(spec(trials=2))
    assert latch.is_reached.wait(60)
    last = service.events(job.id)[-1].id
    own = threading.Event()
    with service.listening(job.id, own):
        assert not own.wait(0.05)
        latch.is_open.set()
        assert own.wait(60)
    assert service.events(job.id, last)[0].kind == "trial"


def test_what_is_not_there_is_not_found(serve: Serve) -> None:
    service = serve()
    for ask in (service.job, service.trials, service.events, service.best, service.cancel, service.outcome_counts):
        with pytest.raises(NotFound, match="there is no job 'job-0'"):
            ask("job-0")
    with pytest.raises(NotFound):
        service.artifact("0" * 64)


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_page_of_an_odd_size_is_refused(serve: Serve, limit: int) -> None:
    service = serve()
    with pytest.raises(InvalidInput, match="limit"):
        service.jobs(limit=limit)


def test_a_job_without_a_result_says_why(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    running, waiting = service.submit(spec(16))[0], service.submit(spec(32))[0]
    assert latch.is_reached.wait(60)
    assert service.job(running.id).state is JobState.SEARCHING
    with pytest.raises(NotFound, match="still being searched"):
        service.best(running.id)
    with pytest.raises(NotFound, match="it is queued"):
        service.best(waiting.id)


def test_readiness_tells_a_runner_that_does_not_run(store: Store) -> None:
    service = Service(store, LocalDispatcher([evaluator()]))
    with pytest.raises(WorkerError, match="not running"):
        service.ready()
    service.start()
    service.ready()
    service.close()
