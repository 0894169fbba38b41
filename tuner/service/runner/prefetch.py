"""Starts the next job while the card still works on the current one.

A search computes for a second before its first choice, and then the card waits for the first builds. Both are done in
advance: the next job's search is started, and its most likely first candidates are built into the cache. Predicted
candidates that are not built by the job's turn are then built all at once, while its own choices come a few at a time.
The tried candidates stay the same: each is chosen during the job's turn, with the knowledge at that time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.space.joint import any_space_of
from tuner.core.trial.evaluator import Environment, Preparation, Problem
from tuner.core.trial.records import JobRecord
from tuner.dispatch import BuildPool
from tuner.dispatch.sources import kernel_version_for
from tuner.search import SearchOrder
from tuner.service.inspections import problem_of
from tuner.service.runner.pipeline import Chooser
from tuner.service.runner.priors import PriorBook
from tuner.service.runner.searching import BegunSearch, Search, order_of

_log = logging.getLogger(__name__)

#: With fewer build slots, all are used for the current job.
LEAST_PLACES = 4
#: The maximum share of a budget that is built in advance; the rest are variations of earlier trials.
BUDGET_SHARE = 0.75


@dataclass(frozen=True, kw_only=True)
class NextJob:
    """A job that will run soon."""

    problem: Problem
    #: What its search starts with, including the priors known so far.
    order: SearchOrder


def next_job(job: JobRecord, gpu: Gpu, priors: PriorBook, environment: Environment) -> NextJob:
    """What a job would start with if it began now.

    Raises:
        StoreUnavailable: the database stays locked.
    """
    workload = job.spec.workload
    chosen = priors.by_now(job, any_space_of(workload, gpu), kernel_version_for(environment, workload))
    return NextJob(problem=problem_of(job), order=order_of(job, gpu, (), chosen))


@dataclass(kw_only=True)
class _Begun:
    """A search started in advance. Only its thread uses it, until `search` takes it over."""

    stack: ExitStack = field(default_factory=ExitStack)
    job: NextJob | None = None
    search: BegunSearch | None = None
    #: Candidates that are built or being built.
    built: set[Candidate] = field(default_factory=set)
    #: Further predicted candidates.
    unbuilt: deque[Candidate] = field(default_factory=deque)
    is_wanted: threading.Event = field(default_factory=threading.Event)


class Prefetch:
    """Prefetches for one runner, whose thread calls its methods."""

    def __init__(self, search_by: Search, builds: Callable[[], BuildPool], name: str) -> None:
        """`search_by` starts a search, and `builds` returns the build pool."""
        self._search_by = search_by
        self._builds = builds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"beforehand {name}")
        self._begun: tuple[_Begun, Future[None]] | None = None

    def begin(self, find: Callable[[], NextJob | None]) -> None:
        """Starts the search of the job that `find` returns, in a separate thread, and drops any search started
        before."""
        self.drop()
        builds = self._builds()
        if builds.num_places >= LEAST_PLACES:
            begun = _Begun()
            self._begun = begun, self._thread.submit(self._work, begun, find, builds)

    @contextmanager
    def search(self, order: SearchOrder) -> Iterator[Chooser]:
        """The search for `order`: the prefetched one if it is for the same job, otherwise a new one."""
        begun = self._taken()
        with begun.stack:
            if begun.search and begun.job and replace(begun.job.order, priors=()) == replace(order, priors=()):
                begun.search.begin_with(order.priors)
                self._build_rest(begun, begun.job.problem, order.priors)
                yield begun.search
                return
        with self._search_by(order) as search:
            yield search

    def build(self, problem: Problem, candidates: Iterable[Candidate]) -> None:
        """Builds candidates of a job that waits for others, so that they are ready at its turn. Returns immediately."""
        builds = self._builds()
        for candidate in candidates if builds.num_places >= LEAST_PLACES else ():
            builds.prepare(problem, candidate)

    def drop(self) -> None:
        """Ends the prefetched search."""
        self._taken().stack.close()

    def close(self) -> None:
        """Ends the prefetched search without waiting for it."""
        if self._begun:
            self._begun[0].is_wanted.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _taken(self) -> _Begun:
        """The prefetched search in its current state, which its thread no longer uses."""
        if self._begun is None:
            return _Begun()
        (begun, working), self._begun = self._begun, None
        begun.is_wanted.set()
        if not working.cancel():
            working.result()
        return begun

    def _work(self, begun: _Begun, find: Callable[[], NextJob | None], builds: BuildPool) -> None:
        try:
            job = find()
            if job is None or begun.is_wanted.is_set():
                return
            search = begun.stack.enter_context(self._search_by(job.order))
            self._build(begun, search, job, builds)
            begun.job, begun.search = job, search
        except Exception as error:  # the job itself will raise it again, or it never will
            _log.info("a prefetched build was dropped: %s: %s", type(error).__name__, error)

    @staticmethod
    def _build(begun: _Begun, search: BegunSearch, job: NextJob, builds: BuildPool) -> None:
        """Builds predicted candidates in half of the build slots; the others are for the current job."""
        at_work, num_left = set[Future[Preparation]](), int(BUDGET_SHARE * (job.order.num_trials or 0))
        while (num_left or begun.unbuilt) and not begun.is_wanted.is_set():
            candidate = search.foresee() if num_left else None
            num_left = num_left - 1 if candidate else 0
            if candidate:
                begun.unbuilt.append(candidate)
            while begun.unbuilt and len(at_work) < builds.num_places // 2:
                begun.built.add(begun.unbuilt[0])
                at_work.add(builds.prepare(job.problem, begun.unbuilt.popleft()))
            at_work = wait(at_work, timeout=0 if num_left else 0.2, return_when=FIRST_COMPLETED).not_done

    def _build_rest(self, begun: _Begun, problem: Problem, priors: Sequence[Candidate]) -> None:
        """Builds the job's priors and the predicted candidates, unless already built."""
        builds = self._builds()
        for candidate in dict.fromkeys((*priors, *begun.unbuilt)):
            if candidate not in begun.built:
                builds.prepare(problem, candidate)
