"""An evaluator that records its calls, and what they show about a job: when the card worked, and what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tuner.core.insight.traces.tracing import no_trace
from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import (
    ArtifactFiles,
    Environment,
    Evaluator,
    FinalsTimes,
    Preparation,
    Prepared,
    Problem,
)
from tuner.core.trial.outcome import Outcome
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_counters, no_energy

Interval = tuple[float, float]

_NO_INSPECTIONS = "this benchmark makes no inspections"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A call of the evaluator."""

    #: ``prepare``, ``measure``, ``finals`` or ``artifact``.
    what: str
    #: Times of the monotonic clock, seconds.
    begin_s: float
    end_s: float
    #: Whether the call was for one of our candidates.
    is_ours: bool = True
    #: Seconds by stage of finals; microseconds of each finalist in each round; and the process of each round.
    stage_s: dict[str, float] = field(default_factory=dict)
    times_us: tuple[tuple[float, ...] | None, ...] = ()
    process_of_round: tuple[int, ...] = ()


class TimedEvaluator:
    """Wraps another `Evaluator`. It makes no inspections, which would delay the next job."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Takes ownership of `evaluator`."""
        self._evaluator = evaluator
        self._spans: list[Span] = []

    def take_spans(self) -> list[Span]:
        """The calls that have ended since the previous request."""
        spans, self._spans = self._spans, []
        return spans

    @contextmanager
    def _timed(self, what: str, *, is_ours: bool = True) -> Iterator[dict[str, Any]]:
        """Records the block; further fields of its `Span` go into the yielded dict."""
        begin_s, more = time.monotonic(), dict[str, Any]()
        yield more
        self._spans.append(Span(what=what, begin_s=begin_s, end_s=time.monotonic(), is_ours=is_ours, **more))

    @property
    def target(self) -> Target:
        """The target of the evaluator."""
        return self._evaluator.target

    @property
    def uuid(self) -> str:
        """The UUID of its card."""
        return self._evaluator.uuid

    def environment(self) -> Environment:
        """The environment of its figures."""
        return self._evaluator.environment()

    def probe(self) -> None:
        """Probes whether the card can be used."""
        self._evaluator.probe()

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves, renders and builds."""
        with self._timed("prepare", is_ours=candidate.plan_kind.is_ours):
            return self._evaluator.prepare(problem, candidate)

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Outcome:
        """Checks and times."""
        with self._timed("measure"):
            return self._evaluator.measure(problem, prepared, incumbent_speedup)

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **options: Any) -> FinalsTimes:
        """Times all candidates against each other."""
        with self._timed("finals") as more:
            times = self._evaluator.finals(problem, candidates, **options)
            more.update(stage_s=times.stage_s, times_us=times.times_us, process_of_round=times.process_of_round)
        return times

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        """The files of a candidate."""
        with self._timed("artifact"):
            return self._evaluator.artifact(problem, candidate, extra)

    def beside(
        self, problem: Problem, candidates: tuple[Candidate, ...], baselines: tuple[Baseline, ...], **asked: Any
    ) -> tuple[BaselineTime, ...]:
        """Measures nothing, and says so."""
        return tuple(BaselineTime(name=one.name, reason=_NO_INSPECTIONS) for one in baselines)

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        """Measures nothing, and says so."""
        return no_energy(_NO_INSPECTIONS)

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        """Measures nothing, and says so."""
        return no_counters(_NO_INSPECTIONS)

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """Measures nothing, and says so."""
        return no_trace(_NO_INSPECTIONS, simulated=self.target.simulated)

    def close(self) -> None:
        """Ends its processes."""
        self._evaluator.close()


class LentEvaluator(TimedEvaluator):
    """An evaluator whose owner continues to use the inner one. Its processes end with the thread that started them,
    so that thread belongs to the owner."""

    def __init__(self, evaluator: Evaluator, thread: ThreadPoolExecutor) -> None:
        super().__init__(evaluator)
        self._thread = thread

    def probe(self) -> None:
        """Probes whether the card can be used."""
        self._thread.submit(super().probe).result()

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Outcome:
        """Checks and times."""
        return self._thread.submit(super().measure, problem, prepared, incumbent_speedup).result()

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **options: Any) -> FinalsTimes:
        """Times all candidates against each other."""
        return self._thread.submit(partial(super().finals, **options), problem, candidates).result()

    def close(self) -> None:
        """Does nothing; the owner closes the evaluator."""


def card_figures(spans: Sequence[Span]) -> dict[str, Any]:
    """For one job: how long the card was busy with its trials, how long it was idle after the first cubin was built,
    and how much of that time a build was running."""
    built = [span for span in spans if span.what == "prepare" and span.is_ours]
    measured = _intervals(spans, lambda span: span.what == "measure")
    if not built or not measured:
        return {}
    window = (min(span.end_s for span in built), max(end for _, end in measured))
    idle = list(gaps(union(measured), window))
    builds = union([(span.begin_s, span.end_s) for span in built])
    return {
        "card_busy_s": round(seconds(union(measured)), 2),
        "first_cubin_s": round(window[0] - min(span.begin_s for span in spans), 2),
        "card_idle_s": round(seconds(idle), 2),
        "card_waits_for_builds_s": round(seconds(overlap(idle, builds)), 2),
        "finals_card_s": round(seconds(_intervals(spans, lambda span: span.what == "finals")), 2),
        "artifact_s": round(seconds(_intervals(spans, lambda span: span.what == "artifact")), 2),
        "num_prepared": len(built),
    }


def _intervals(spans: Iterable[Span], wanted: Callable[[Span], bool]) -> list[Interval]:
    return [(span.begin_s, span.end_s) for span in spans if wanted(span)]


def seconds(intervals: Iterable[Interval]) -> float:
    """The sum of the intervals' lengths."""
    return sum(end - begin for begin, end in intervals)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not touch, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def gaps(intervals: Sequence[Interval], window: Interval) -> Iterator[Interval]:
    """The parts of `window` in none of the intervals, which are in order."""
    at = window[0]
    for begin, end in intervals:
        if begin > at:
            yield at, min(begin, window[1])
        at = max(at, end)
        if at >= window[1]:
            return
    yield at, window[1]


def overlap(ones: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The intersection; each list is disjoint."""
    pairs = [(max(a, c), min(b, d)) for a, b in ones for c, d in others]
    return [(begin, end) for begin, end in pairs if begin < end]
