"""The documents of what became of a candidate, as a type checker sees them: plain dicts with these keys."""

from __future__ import annotations

from typing import Literal, TypedDict


class Metric(TypedDict):
    """One named figure."""

    tag: str
    unit: str
    value: float


class Procedure(TypedDict):
    """What a time is the time of."""

    l2: str
    regime: str
    launch: str
    chain_length: int


class Measured(TypedDict):
    """Its numbers were right, and this is how long it took."""

    kind: Literal["measured"]
    time_us: float
    library_us: float
    speedup: float
    spread: float
    rel_error: float
    samples_us: list[float]
    metrics: list[Metric]
    stage_s: dict[str, float]
    procedure: Procedure | None
    truncated: bool
    remark: str


class Rejected(TypedDict):
    """Refused for a reason before it ran."""

    kind: Literal["rejected"]
    stage: str
    reason: str
    stage_s: dict[str, float]


class Failed(TypedDict):
    """It should have worked, and did not."""

    kind: Literal["failed"]
    stage: str
    failure: str
    reason: str
    stage_s: dict[str, float]
