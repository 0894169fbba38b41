"""A server without HTTP, to be killed: runs all open jobs of a data directory, four builds at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, FinalsTimes, Problem
from tuner.core.trial.reports.inspection import CounterReport
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator


class SlowEvaluator(SimulatedEvaluator):
    """The simulated evaluator with slow finals, counters and kernel packing."""

    def __init__(self, finals_s: float, counters_s: float, artifact_s: float, **options: Any) -> None:
        super().__init__(parse_target("simulated:h200"), **options)
        self._finals_s, self._counters_s, self._artifact_s = finals_s, counters_s, artifact_s

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        time.sleep(self._finals_s)
        return super().finals(problem, candidates, **asked)

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        print("packs", flush=True)
        time.sleep(self._artifact_s)
        return super().artifact(problem, candidate, extra)

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        time.sleep(self._counters_s)
        return super().count(problem, candidate, metrics)


def main(arguments: list[str]) -> None:
    """Runs until it is killed; arguments: the directory, and the seconds per trial, finals, counting, build, and packed
    kernel."""
    directory, *seconds = arguments
    trial_s, finals_s, counters_s, build_s, artifact_s = map(float, seconds)
    twin = SlowEvaluator(finals_s, counters_s, artifact_s, latency_s=trial_s, build_s=build_s)
    Service(Store.open(Path(directory)), LocalDispatcher([twin], num_places=4)).start()
    print("started", flush=True)
    time.sleep(600)
