"""A benchmark's evaluator, without a service: candidates are made ready ahead, on all cores, while one is measured."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Evaluator, Preparation, Prepared, Problem, evaluate
from tuner.core.trial.outcome import Outcome
from tuner.dispatch.factory import make_evaluators
from tuner.errors import TunerError
from tuner.search.seeds import first_guesses
from tuner.winners import ShippedWinners
from tuner.workers.builder.places import places_here
from tuner.workers.host.supervisor import GpuSupervisor

#: Kept from run to run.
BUILD_CACHE = Path("build/bench-cache")
#: What a candidate is made ready into; None where nothing is built, as for the simulated twin.
Ready = Preparation | None


class Workbench:
    """One evaluator, and the cores of this machine."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Takes `evaluator` over."""
        self.evaluator = evaluator
        self.gpu: Gpu = evaluator.target.gpu
        self._is_real = isinstance(evaluator, GpuSupervisor)
        self._threads = ThreadPoolExecutor(2 * places_here())

    def begin(self, problem: Problem, candidate: Candidate) -> Future[Ready]:
        """Proves and builds in the background."""
        if not self._is_real:
            nothing = Future[Ready]()
            nothing.set_result(None)
            return nothing
        return self._threads.submit(self.evaluator.prepare, problem, candidate)

    def outcome(self, problem: Problem, candidate: Candidate, ready: Ready, incumbent: float | None) -> Outcome:
        """Measures what is ready.

        Raises:
            WorkerError: the evaluator does not work.
        """
        if ready is None:
            return evaluate(self.evaluator, problem, candidate, incumbent)
        if not isinstance(ready, Prepared):
            return ready
        return self.evaluator.measure(problem, ready, incumbent)

    @property
    def winners_file(self) -> Path:
        """Where this card's winners lie."""
        return ShippedWinners().path(self.evaluator.target.id)

    def close(self) -> None:
        """Ends the evaluator and the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.evaluator.close()


@contextmanager
def open_workbench(gpu: str, build_cache: Path) -> Iterator[Workbench]:
    """With this machine's first card, or a simulated one, as `tuner serve --gpu` takes it.

    Raises:
        InvalidInput: `gpu` is no choice.
    """
    evaluators, why = make_evaluators(gpu, build_cache=build_cache)
    print(why)
    for other in evaluators[1:]:
        other.close()
    bench = Workbench(evaluators[0])
    try:
        yield bench
    finally:
        bench.close()


def message_of(error: Exception) -> str:
    """The message; with the error's type where it is none of this program's, whose messages are sentences."""
    return str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"


class Guesses:
    """First guesses of many workloads, forecast on all cores at once: with many rows one takes seconds."""

    def __init__(self, workloads: Iterable[Workload], gpu: Gpu, seed: int, *, in_parallel: bool = True) -> None:
        """Begins with the first."""
        self._gpu, self._seed = gpu, seed
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[Workload, Future[list[Schedule]]] = {}
        if in_parallel:
            num_processes = max(1, (os.cpu_count() or 1) - 2)
            self._pool = ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn"))
            self._begun = {workload: self._pool.submit(_guess, workload, gpu, seed) for workload in workloads}

    def of(self, workload: Workload) -> list[Schedule]:
        """The search's first guesses."""
        begun = self._begun.get(workload)
        return begun.result() if begun else _guess(workload, self._gpu, self._seed)

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _guess(workload: Workload, gpu: Gpu, seed: int) -> list[Schedule]:
    return list(first_guesses(Space(workload, gpu), seed))


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far, rounded to tenths."""
        return round(time.monotonic() - self._begin_s, 1)
