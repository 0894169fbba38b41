"""What one trial tries: how the ops are launched, and by which schedule."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What one trial tries."""

    plan_kind: PlanKind
    #: None for the library alone.
    schedule: Schedule | None = None


#: What every other candidate is measured against.
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)


def fused(schedule: Schedule) -> Candidate:
    """One plain launch of a schedule for all ops."""
    return Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)
