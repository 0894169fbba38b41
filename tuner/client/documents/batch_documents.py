"""The documents of batches that the API returns.

Written by ``python -m tests.house.documents``. `/openapi.json` describes each field.
"""

from __future__ import annotations

from typing import TypedDict

from tuner.client.documents.documents import ArtifactLink, Candidate, Job


class Batch(TypedDict):
    """A batch and its state."""

    id: str
    name: str
    labels: list[str]
    state: str
    target: str
    simulated: bool
    owner: str
    project: str
    created_at: str
    num_jobs: int
    jobs_by_state: dict[str, int]
    num_trials: int
    num_planned: int
    num_paused: int
    search_s: float
    eta_s: float | None
    card_share: float | None
    speedups: list[float] | None
    queue_position: int | None
    num_ladders: int
    num_answered: int
    links: dict[str, str]


class BatchJob(TypedDict):
    """A job of a batch."""

    ladder: int
    m: int
    job: Job


class LadderRung(TypedDict):
    """What runs for a range of rows."""

    m_lo: int
    m_hi: int
    kernel: int | None
    job_id: str | None
    time_us: float | None
    library_us: float | None
    speedup: float | None
    speedup_ci95: list[float] | None
    loss: float | None


class LadderKernel(TypedDict):
    """A kernel that a ladder uses."""

    candidate: Candidate
    m_lo: int
    m_hi: int
    job_id: str
    artifact: ArtifactLink | None


class LadderGain(TypedDict):
    """The gain of the ladder at one measured number of rows: a point of its curve."""

    m: int
    time_us: float
    library_us: float
    speedup: float
    speedup_ci95: list[float] | None
    kernel: int | None


class Ladder(TypedDict):
    """The result of a ladder; above its last rung the library runs."""

    number: int
    workload: str
    simulated: bool
    rungs: list[LadderRung]
    kernels: list[LadderKernel]
    gains: list[LadderGain]
    slack: float
    least_kernels: int
    reason: str


class BatchBest(TypedDict):
    """The results of a batch."""

    id: str
    target: str
    simulated: bool
    is_complete: bool
    ladders: list[Ladder]
