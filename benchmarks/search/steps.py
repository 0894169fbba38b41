"""The steps of a batch's jobs, one line for each change, which shows how far an interrupted run came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.search.timed import Span, seconds, union
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchStep, rows_of
from tuner.core.trial.records import JobRecord

#: What a searching job is doing, by its step with its ladder.
_STEPS = {BatchStep.SEARCH: "searches", BatchStep.SHARE: "has searched", BatchStep.FINALS: "has shared"}


class Steps:
    """The last reported step of each job, and the time of the last change."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._last_s = 0.0
        #: All changes, for the entry: seconds since the submission, rows, step, recorded trials.
        self.changes: list[dict[str, Any]] = []

    def lines(self, at_s: float, jobs: Iterable[JobRecord], spans: Sequence[Span]) -> Iterator[str]:
        """A line for each job whose step has changed; `spans` are the evaluator's calls so far."""
        for job in jobs:
            step = step_of(job)
            if step == self._said.get(job.id, str(JobState.QUEUED)):
                continue
            self._said[job.id] = step
            m = rows_of(job.spec.workload)
            self.changes.append({"at_s": round(at_s, 1), "m": m, "step": step, "trials": job.num_trials})
            yield f"{at_s:.1f} s: m {m} {step}, {job.num_trials} trials; {_since(spans, self._last_s, at_s)}"
            self._last_s = at_s


def step_of(job: JobRecord) -> str:
    """A job's step, from its state and its step with the ladder."""
    if job.state is JobState.SEARCHING and job.batch_step is not None:
        return _STEPS[BatchStep(job.batch_step)]
    return str(job.state)


def _since(spans: Sequence[Span], begin_s: float, end_s: float) -> str:
    """How long the card and the builds were busy between two times."""

    def busy_s(*names: str) -> float:
        pieces = ((max(one.begin_s, begin_s), min(one.end_s, end_s)) for one in spans if one.what in names)
        return seconds(union((begin, end) for begin, end in pieces if begin < end))

    return (
        f"of the last {end_s - begin_s:.1f} s the card was busy for {busy_s('measure', 'finals', 'artifact'):.1f}, "
        f"builds for {busy_s('prepare'):.1f}"
    )
