"""A running batch reports each change of its jobs' steps, and what the GPU and the builds did since."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.search.steps import Steps
from benchmarks.search.timed import Span
from tests.support.builders import spec
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchStep
from tuner.core.trial.records import JobRecord


def job(m: int, state: JobState, step: BatchStep | None = BatchStep.SEARCH, num_trials: int = 0) -> JobRecord:
    return JobRecord(
        id=f"job-{m}",
        spec=spec(m),
        state=state,
        reason="",
        created_at=0.0,
        started_at=None,
        finished_at=None,
        num_measured=num_trials,
        num_rejected=0,
        num_failed=0,
        best_us=None,
        library_us=None,
        search_s=0.0,
        batch_id="batch-1",
        batch_step=step,
    )


def test_each_change_is_said_once_with_what_was_busy_since_the_last_one() -> None:
    steps, queued = Steps(), job(16, JobState.QUEUED)
    spans = [
        Span(what="prepare", begin_s=0.5, end_s=2.5),
        Span(what="prepare", begin_s=1.0, end_s=3.0),
        Span(what="measure", begin_s=3.0, end_s=4.0),
        Span(what="finals", begin_s=6.0, end_s=9.0),
    ]
    first = job(4, JobState.SEARCHING)
    assert list(steps.lines(1.0, [first, queued], spans)) == [
        "1.0 s: m 4 searches, 0 trials; of the last 1.0 s the card was busy for 0.0, builds for 0.5"
    ]
    assert list(steps.lines(3.0, [replace(first, num_measured=3), queued], spans)) == []
    shared = job(4, JobState.SEARCHING, BatchStep.SHARE, num_trials=7)
    assert list(steps.lines(5.0, [shared, queued], spans)) == [
        "5.0 s: m 4 has searched, 7 trials; of the last 4.0 s the card was busy for 1.0, builds for 2.0"
    ]
    finals, other = job(4, JobState.FINALS, BatchStep.FINALS, 9), job(16, JobState.SEARCHING, BatchStep.FINALS, 2)
    assert [line.split(",")[0] for line in steps.lines(8.0, [finals, other], spans)] == [
        "8.0 s: m 4 finals",
        "8.0 s: m 16 has shared",
    ]
    assert [change["step"] for change in steps.changes] == ["searches", "has searched", "finals", "has shared"]
