"""The next job starts while the GPU is busy: its first builds are ready at its turn, and its trials are unchanged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import candidate_of, finish
from tests.support.builders import TARGET, spec
from tests.support.spaces import space_of
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import JobState, PriorsChoice
from tuner.core.trial.outcome import Outcome
from tuner.dispatch import LocalDispatcher
from tuner.errors import SearchLost
from tuner.search import SearchOrder, search_here
from tuner.service.ladders.ladder_jobs import new_kernels
from tuner.service.runner.prefetch import LEAST_PLACES, NextJob, Prefetch
from tuner.service.runner.searching import BegunSearch
from tuner.workers.simulated.evaluator import SimulatedEvaluator

pytestmark = pytest.mark.slow

LIMIT_S = 60


def order_of_rows(m: int, num_trials: int = 20) -> SearchOrder:
    asked = spec(m, trials=num_trials)
    return SearchOrder(workload=asked.workload, gpu=parse_target(TARGET).gpu, seed=0, num_trials=num_trials)


def next_job(order: SearchOrder) -> NextJob:
    return NextJob(problem=Problem(workload=order.workload, objective=spec().objective), order=order)


def foreseen_by(order: SearchOrder) -> list[Candidate]:
    """Maximum builds ahead for a job of 20 trials."""
    search = order.begin()
    return [candidate for _ in range(15) if (candidate := search.foresee())]


class Searches:
    """Starts searches in this process and counts them."""

    def __init__(self) -> None:
        self.num_begun = self.num_ended = 0

    @contextmanager
    def __call__(self, order: SearchOrder) -> Iterator[BegunSearch]:
        self.num_begun += 1
        with search_here(order) as searcher:
            yield searcher
        self.num_ended += 1


class Noting(SimulatedEvaluator):
    """Records the prepared candidates and the largest number at a time."""

    def __init__(self, build_s: float = 0.0) -> None:
        super().__init__(parse_target(TARGET), build_s=build_s)
        self.lock = threading.Lock()
        self.prepared: list[Candidate] = []
        self.num_building = self.most_building = 0

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        with self.lock:
            self.prepared.append(candidate)
            self.num_building += 1
            self.most_building = max(self.most_building, self.num_building)
        preparation = super().prepare(problem, candidate)
        with self.lock:
            self.num_building -= 1
        return preparation


@pytest.fixture
def noting() -> Iterator[tuple[Noting, LocalDispatcher]]:
    card = Noting(build_s=0.05)
    dispatcher = LocalDispatcher([card], num_places=4)
    yield card, dispatcher
    dispatcher.close()


Card = tuple[Noting, LocalDispatcher]


def test_what_is_built_beforehand_takes_half_of_the_places_and_the_search_is_taken_over(noting: Card) -> None:
    card, dispatcher = noting
    searches, order = Searches(), order_of_rows(64)
    prefetch = Prefetch(searches, lambda: dispatcher.builds(TARGET), "test")
    prefetch.begin(lambda: next_job(order))
    foreseen = set(foreseen_by(order))
    wait_until(lambda: set(card.prepared) == foreseen and card.num_building == 0, LIMIT_S)
    assert card.most_building == 2
    with prefetch.search(order) as search:
        chosen = [search.ask() for _ in range(8)]
    assert (searches.num_begun, searches.num_ended) == (1, 1)
    assert len(set(card.prepared) & set(chosen)) >= 4, "builds are rarely tried"
    prefetch.close()


def test_in_the_turn_of_a_job_the_rest_of_what_is_foreseen_is_built_at_once() -> None:
    card = Noting(build_s=0.5)
    dispatcher = LocalDispatcher([card], num_places=4)
    order = order_of_rows(64)
    *foreseen, prior = foreseen_by(order)
    prefetch = Prefetch(search_here, lambda: dispatcher.builds(TARGET), "test")
    prefetch.begin(lambda: next_job(order))
    wait_until(lambda: len(card.prepared) == 2, LIMIT_S)
    with prefetch.search(replace(order, priors=(prior,))):
        wait_until(lambda: prior in card.prepared and card.most_building > 2, LIMIT_S)
        wait_until(lambda: card.num_building == 0, LIMIT_S)
    assert set(card.prepared) <= {*foreseen, prior}
    assert len(card.prepared) == len(set(card.prepared)), "one was requested twice"
    prefetch.close()
    dispatcher.close()


def test_it_chooses_as_if_nothing_had_been_begun_with_the_priors_of_its_turn(noting: Card) -> None:
    _, dispatcher = noting
    order = order_of_rows(64)
    alone = order.begin()
    first = [alone.ask() for _ in range(6)]
    early, late = first[3], first[5]
    assert early
    assert late
    expected = replace(order, priors=(late,)).begin()
    prefetch = Prefetch(search_here, lambda: dispatcher.builds(TARGET), "test")
    prefetch.begin(lambda: next_job(replace(order, priors=(early,))))
    with prefetch.search(replace(order, priors=(late,))) as search:
        assert [search.ask() for _ in range(12)] == [expected.ask() for _ in range(12)]
    prefetch.close()


def test_another_job_than_the_one_foreseen_gets_a_search_of_its_own(noting: Card) -> None:
    _, dispatcher = noting
    searches, other = Searches(), order_of_rows(16)
    prefetch = Prefetch(searches, lambda: dispatcher.builds(TARGET), "test")
    prefetch.begin(lambda: next_job(order_of_rows(64)))
    wait_until(lambda: searches.num_begun == 1, LIMIT_S)
    with prefetch.search(other) as search:
        assert searches.num_ended == 1
        alone = other.begin()
        assert [search.ask() for _ in range(6)] == [alone.ask() for _ in range(6)]
    prefetch.close()


def test_a_fault_beforehand_costs_the_job_nothing(noting: Card) -> None:
    _, dispatcher = noting

    def lost() -> NextJob | None:
        raise SearchLost("its process has died")

    prefetch = Prefetch(search_here, lambda: dispatcher.builds(TARGET), "test")
    prefetch.begin(lost)
    with prefetch.search(order_of_rows(64)) as search:
        assert search.ask() is not None
    prefetch.close()


class Held(Noting):
    """Blocks the GPU in the first job until a candidate of the second one was prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()
        self.was_prefetched: bool | None = None

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        if problem.workload.batch_size == 48:
            self.second.set()
        return super().prepare(problem, candidate)

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if self.was_prefetched is None and candidate_of(prepared).plan_kind.is_ours:
            self.was_prefetched = self.second.wait(LIMIT_S)
        return super().measure(problem, prepared, *incumbent)


# In CI, tests/unit/service/test_runner.py begins the next job, and the other tests say what is built beforehand.
@pytest.mark.soak
def test_the_next_job_is_built_while_the_card_works_and_its_trials_are_those_of_a_job_alone(serve: Serve) -> None:
    held = Held()
    service = serve(held, num_places=4, max_ahead=0)
    first, second = (service.submit(replace(spec(m, trials=8), priors=PriorsChoice.NONE))[0] for m in (64, 48))
    assert finish(service, first).state is finish(service, second).state is JobState.SUCCEEDED
    assert held.was_prefetched
    alone = order_of_rows(48, num_trials=8).begin()
    for trial in service.trials(second.id, limit=100).items:
        assert trial.candidate == alone.ask()
        alone.tell(trial)


# In CI, the next job of no ladder is built beforehand.
@pytest.mark.soak
def test_what_a_job_of_a_ladder_will_try_of_new_kernels_is_built_while_others_search(serve: Serve) -> None:
    card = Noting()
    service = serve(card, num_places=4)
    batch, _ = service.batches.submit([replace(spec(m, trials=8), priors=PriorsChoice.NONE) for m in (96, 192)])
    wait_until(lambda: service.batches.get(batch.id).state.is_final, LIMIT_S)
    new = []
    for job, _ in service.batches.jobs(batch.id).items:
        searched = service.trials(job.id, limit=100).items[:8]
        space, tried = space_of(job.spec.workload, parse_target(TARGET).gpu), {one.candidate for one in searched}
        new += [one for one in new_kernels(space, searched) if one not in tried]
    assert new
    assert [one for one in new if card.prepared.count(one) < 2] == [], "once ahead of time, and once in its turn"


def test_few_places_are_left_to_the_job_at_work() -> None:
    searches, few = Searches(), LocalDispatcher([Noting()], num_places=LEAST_PLACES - 1)
    prefetch = Prefetch(searches, lambda: few.builds(TARGET), "test")
    prefetch.begin(lambda: next_job(order_of_rows(64)))
    prefetch.drop()
    assert searches.num_begun == 0
    prefetch.close()
    few.close()


def test_builds_beforehand_that_fail_end_nothing() -> None:
    class Failing:
        num_places = LEAST_PLACES

        def prepare(self, problem: Problem, candidate: Candidate) -> Future[Preparation]:
            failed = Future[Preparation]()
            failed.set_exception(RuntimeError("no build"))
            return failed

    searches, order = Searches(), order_of_rows(64)
    prefetch = Prefetch(searches, Failing, "test")
    prefetch.begin(lambda: next_job(order))
    with prefetch.search(order) as search:
        assert search.ask() is not None
    assert searches.num_ended == searches.num_begun
    prefetch.close()
