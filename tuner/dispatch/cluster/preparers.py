"""Prepares candidates for cards of other machines: with a compiler, or with the simulated GPU's model."""

from __future__ import annotations

import threading
from pathlib import Path

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Problem
from tuner.core.trial.limits import Limits
from tuner.dispatch.local import Preparer
from tuner.errors import WorkerError
from tuner.workers.builder.nvrtc import Builder, nvrtc_version
from tuner.workers.builder.places import places_here
from tuner.workers.builder.prepare import try_prepare
from tuner.workers.simulated.evaluator import SimulatedEvaluator


class KernelPreparer:
    """Prepares for one real GPU on another machine."""

    def __init__(self, target: Target, builder: Builder, spin_limit_cycles: int) -> None:
        self._target = target
        self._builder = builder
        self._spin_limit_cycles = spin_limit_cycles

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves, renders, builds."""
        return try_prepare(
            problem.workload,
            self._target.gpu,
            candidate,
            self._builder,
            spin_limit_cycles=self._spin_limit_cycles,
        )


class Preparers:
    """One preparer per target, created on demand. Thread-safe."""

    def __init__(self, build_cache: Path, limits: Limits, num_places: int | None) -> None:
        self._build_cache = build_cache
        self._limits = limits
        self._num_places = num_places
        self._lock = threading.Lock()
        self._by_target: dict[Target, Preparer] = {}
        self._builder: Builder | None = None

    @property
    def compiler(self) -> str:
        """NVRTC's version; empty if it is not installed, so that only simulated candidates can be prepared."""
        try:
            return nvrtc_version()
        except (WorkerError, ModuleNotFoundError):
            return ""

    def of(self, target: Target) -> Preparer:
        """The build pool of `target`.

        Raises:
            WorkerError: NVRTC is not installed here.
        """
        with self._lock:
            if target not in self._by_target:
                self._by_target[target] = self._made(target)
            return self._by_target[target]

    def _made(self, target: Target) -> Preparer:
        if target.simulated:
            return SimulatedEvaluator(target, limits=self._limits)
        if self._builder is None:
            places = self._num_places or places_here()
            self._builder = Builder(self._build_cache, limits=self._limits, num_processes=places)
        return KernelPreparer(target, self._builder, self._limits.spin_limit_cycles)

    def close(self) -> None:
        """Ends the compilers."""
        with self._lock:
            if self._builder is not None:
                self._builder.close()
