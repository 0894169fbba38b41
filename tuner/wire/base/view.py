"""The base of all responses."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from tuner.core.problem.gpu import SIMULATED_PREFIX


def is_simulated(target_id: str) -> bool:
    """Whether figures for a target come from the simulated GPU."""
    return target_id.startswith(SIMULATED_PREFIX)


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


class View(BaseModel):
    """A read-only copy of a domain value."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)
