"""A benchmark's evaluator, without a service: candidates are prepared ahead, on all cores, while one is measured."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Evaluator, Preparation, Prepared, Problem, evaluate
from tuner.core.trial.outcome import Outcome
from tuner.dispatch.factory import make_evaluators
from tuner.errors import TunerError
from tuner.workers.builder.places import places_here
from tuner.workers.host.supervisor import GpuSupervisor

#: Folder of builds, kept between runs.
BUILD_CACHE = Path("build/bench-cache")
#: A prepared candidate; None if nothing is built, as for the simulated GPU.
Ready = Preparation | None


class Workbench:
    """One evaluator, and the cores of this machine."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Takes ownership of `evaluator`."""
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

    def close(self) -> None:
        """Ends the evaluator and the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.evaluator.close()


@contextmanager
def open_workbench(gpu: str, build_cache: Path) -> Iterator[Workbench]:
    """A workbench with this machine's first card, or a simulated one, chosen like `tuner serve --gpu`.

    Raises:
        InvalidInput: `gpu` is not a valid choice.
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
    """The message, with the error's type unless it is one of this program's, whose messages are sentences."""
    return str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
