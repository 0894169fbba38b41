"""The beginning of the next job while the card is at work on the one before.

A search computes for a second before its first choice, and then every place builds while the card waits. Both are done
in advance: the next job's search is begun, and what it will most likely try first is built, so that the builds are
found where they are kept. What is foreseen and not yet built in the job's turn is built then, all at once: its own
choices come a few at a time. What is tried stays the same: a choice is made when its job is at work, with what is known
then.
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

#: Where fewer builds run at a time, they are all wanted for the job at work.
LEAST_PLACES = 4
#: Of a budget, the share that is built in advance, at most: the rest varies what is found.
BUDGET_SHARE = 0.75


@dataclass(frozen=True, kw_only=True)
class NextJob:
    """A job that will be at work soon."""

    problem: Problem
    #: With the priors that are known by now.
    order: SearchOrder


def next_job(job: JobRecord, gpu: Gpu, priors: PriorBook, environment: Environment) -> NextJob:
    """How a job would begin now.

    Raises:
        StoreUnavailable: the database stays locked.
    """
    workload = job.spec.workload
    chosen = priors.by_now(job, any_space_of(workload, gpu), kernel_version_for(environment, workload))
    return NextJob(problem=problem_of(job), order=order_of(job, gpu, (), chosen))


@dataclass(kw_only=True)
class _Begun:
    """A search that was begun in advance. Its thread alone asks it, until `search` takes it over."""

    stack: ExitStack = field(default_factory=ExitStack)
    job: NextJob | None = None
    search: BegunSearch | None = None
    #: What is built, or under way.
    built: set[Candidate] = field(default_factory=set)
    #: What it foresees besides.
    unbuilt: deque[Candidate] = field(default_factory=deque)
    is_wanted: threading.Event = field(default_factory=threading.Event)


class Prefetch:
    """For one runner, whose thread calls its methods."""

    def __init__(self, search_by: Search, builds: Callable[[], BuildPool], name: str) -> None:
        """`search_by` begins a search, and `builds` says who makes candidates ready."""
        self._search_by = search_by
        self._builds = builds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"beforehand {name}")
        self._begun: tuple[_Begun, Future[None]] | None = None

    def begin(self, find: Callable[[], NextJob | None]) -> None:
        """Begins with the job that `find` names, in a thread of its own; what was begun before is dropped."""
        self.drop()
        builds = self._builds()
        if builds.num_places >= LEAST_PLACES:
            begun = _Begun()
            self._begun = begun, self._thread.submit(self._work, begun, find, builds)

    @contextmanager
    def search(self, order: SearchOrder) -> Iterator[Chooser]:
        """The search of a job: the one that was begun in advance, where that is of the same job."""
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
        """Has candidates of a job that waits for others built, so that its turn finds them; nothing is waited for."""
        builds = self._builds()
        for candidate in candidates if builds.num_places >= LEAST_PLACES else ():
            builds.prepare(problem, candidate)

    def drop(self) -> None:
        """Ends what was begun."""
        self._taken().stack.close()

    def close(self) -> None:
        """Ends what was begun, without waiting for it."""
        if self._begun:
            self._begun[0].is_wanted.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _taken(self) -> _Begun:
        """What was begun, as far as it is; its thread lets go of it."""
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
        except Exception as error:  # whatever it is, its job meets it again, or never
            _log.info("a prefetched build was dropped: %s: %s", type(error).__name__, error)

    @staticmethod
    def _build(begun: _Begun, search: BegunSearch, job: NextJob, builds: BuildPool) -> None:
        """Has built what the search foresees, in half of the places: the others are for the job at work."""
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
        """Has the job's priors and what it foresees built, as far as they are not."""
        builds = self._builds()
        for candidate in dict.fromkeys((*priors, *begun.unbuilt)):
            if candidate not in begun.built:
                builds.prepare(problem, candidate)
