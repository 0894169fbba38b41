"""A problem on a card: its inputs, its references and the library's baseline, made once for all candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from tuner.core.trial.evaluator import Problem

from ...protocol.stopwatch import Stopwatch
from ...timing.library_choice import Picked
from ..launching.squares import InputSquares
from ..library.baseline import Library
from ..library.op_library import library_of
from ..library.runners import Runner
from ..library.vendor import Vendor
from ..tensors.compare import Comparer
from ..tensors.data import ProblemData
from ..tensors.integrity import Integrity, Overwritten
from ..tensors.op_data import RunOperands
from .algorithms import pick_algorithms
from .card import CardView
from .timing import Timer


class ProblemOnCard:
    """A problem on the card, with its library baseline."""

    def __init__(
        self, problem: Problem, tools: Any, vendor: Vendor, view: CardView | None, picked: Picked | None = None
    ) -> None:
        """`picked` are the library's algorithms, if they were chosen before."""
        watch = Stopwatch()
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.problem = problem
        self.data = ProblemData(problem, int(properties["l2CacheSize"]), watch)
        self.timer = Timer(self.data, tools, view)
        self.comparer = Comparer(tools)
        self.library: Library = library_of(vendor, self.data, tools)
        self.input_squares = InputSquares(problem.workload, tools)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        if picked is not None:
            self.library.use(picked)
        self.picked = picked or pick_algorithms(self.library, self.timer)
        self.library_graph = self.timer.capture(self.library)
        #: The library's time in the last rounds, microseconds; None before the first. A preview's samples have another
        #: power state.
        self.library_us: float | None = None
        watch.ended("library")
        self._integrity = Integrity(tools, self.data.regions())
        watch.ended("fingerprints")
        #: Seconds that its preparation took, by stage.
        self.stage_s = watch.stage_s

    def run_once(self, runner: Runner, ops: RunOperands) -> str | None:
        """Runs it once to the end, with outputs cleared before; returns why a wait expired, or None."""
        runner.poison()
        cupy.cuda.Device().synchronize()  # the NaNs are written on another stream
        with self.stream:
            runner.enqueue(ops, self.stream.ptr)
        self.stream.synchronize()
        return runner.abort_record()

    def await_busily(self, is_there: Callable[[], bool]) -> None:
        """Keeps the card in its power state with the library until the next candidate `is_there`, or for a while."""
        self.timer.await_busily(self.library_graph, is_there)

    def check_intact(self, runner: Runner) -> None:
        """Checks that whatever ran since the problem was made has only written to its own outputs.

        Raises:
            Overwritten: it has written elsewhere, so the problem is no longer usable.
        """
        if found := runner.overwritten() or self.overwritten():
            raise Overwritten(f"the kernel wrote outside its outputs: {found}")

    def overwritten(self) -> str:
        """Which memory of the problem was overwritten although it must not be, as text; empty if none."""
        return self._integrity.overwritten()
