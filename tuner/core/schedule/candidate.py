"""The candidate of a trial: how the ops are launched, and with which schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tuner.core.problem.joined import joined_workload
from tuner.core.problem.rows.added import needed_rows
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The candidate of a trial."""

    plan_kind: PlanKind
    #: None if the candidate is the library.
    schedule: Schedule | None = None

    @property
    def needs(self) -> set[str]:
        """The rasters of packages that a process must have in addition to what the workload needs, named in
        the same form."""
        return needed_rows(raster.kind for raster in self.schedule.ordering.rasters) if self.schedule else set()

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return {"plan_kind": str(self.plan_kind), "schedule": self.schedule and self.schedule.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            IllegalSchedule, KeyError, TypeError, ValueError, AttributeError: it is not a candidate.
        """
        schedule = data["schedule"]
        return cls(plan_kind=PlanKind(data["plan_kind"]), schedule=schedule and Schedule.from_json(schedule))


#: The baseline of every other candidate.
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)


def fused(schedule: Schedule) -> Candidate:
    """One plain launch of a schedule for all ops."""
    return Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)


def in_fewest_launches(workload: Workload, schedule: Schedule) -> Candidate:
    """A schedule in as few launches as the workload's tile ops allow: a plain one for all of them, or one for each
    group between launch ops; or as one op, if the schedule is of a launch op and the workload has none."""
    if schedule.launch_ops and not workload.launch_ops:
        return Candidate(plan_kind=next(kind for kind in PlanKind if kind.is_joined), schedule=schedule)
    forced = workload.forced_starts
    if not workload.launch_ops or (not forced and len(workload.tile_ops) > 1):
        return fused(schedule)
    if len(workload.tile_ops) > len(forced) + 1:
        in_runs = schedule.but(ordering=replace(schedule.ordering, run_starts=forced))
        return Candidate(plan_kind=PlanKind.RUNS, schedule=in_runs)
    return Candidate(plan_kind=apart_kind(len(workload.ops)), schedule=schedule)


def apart_kind(num_ops: int, *, is_programmatic: bool = False) -> PlanKind:
    """The kind with a launch for each of `num_ops` ops, by default a plain one."""
    apart = (kind for kind in PlanKind if kind.is_apart and not kind.is_side_by_side and kind.is_for(num_ops))
    return next(kind for kind in apart if kind.is_programmatic == is_programmatic)


def launched(workload: Workload, candidate: Candidate) -> tuple[Workload, Candidate]:
    """The workload whose ops a candidate launches, and the candidate in a plan kind of that workload: if the candidate
    joins ops, the workload with these as one, in as few launches as tile ops on one side of it allow; otherwise both
    unchanged.

    Raises:
        IllegalSchedule: no op computes all ops of the workload.
    """
    if not candidate.plan_kind.is_joined:
        return workload, candidate
    try:
        joined = joined_workload(workload)
    except InvalidInput as error:
        raise IllegalSchedule(f"{candidate.plan_kind}: {error.problem}") from error
    kind = apart_kind(len(joined.ops), is_programmatic=candidate.plan_kind.is_programmatic)
    if len(joined.tile_ops) > 1 and not joined.forced_starts:
        kind = PlanKind.FUSED_PDL if candidate.plan_kind.is_programmatic else PlanKind.FUSED
    return joined, replace(candidate, plan_kind=kind)
