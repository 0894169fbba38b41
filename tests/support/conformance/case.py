"""A row of the conformance table: a workload, how to run it, and what to assert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule


class Claim(StrEnum):
    """What a case asserts; each claim has its own test module."""

    #: Compares every op's results with float64, checks the guards around every buffer, and measures a time.
    NUMBERS = "numbers"
    #: All launches produce the same bits, and none of them is NaN.
    RELAUNCHES = "relaunches"
    #: The same; in addition, each part of a tile arrives once per launch.
    ARRIVALS = "arrivals"
    #: The candidates in `others` produce the same bits as this one.
    SAME_BITS = "same_bits"
    #: If one wait requires one post too many, the launch is aborted with a report, and the next one is correct.
    ABORT = "abort"
    #: It runs from its zip alone.
    ARTIFACT = "artifact"
    #: The driver holds as many clusters at once as the plan assumes.
    CLUSTERS = "clusters"
    #: A kernel that was built for another workload gives wrong results, which is detected.
    FOUND_OUT = "found_out"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row."""

    #: ``table-group-shape-workload-plan kind``; unique within a claim.
    id: str
    workload: Workload
    candidate: Candidate
    claim: Claim
    #: For numbers: the upper bound of the relative error, which must not be 0 either; 0 disables both checks.
    error_below: float = 0.0
    #: For relaunches, arrivals and same bits: the number of launches of each candidate.
    num_launches: int = 20
    #: For arrivals: the count of each signal per launch; 0 if they differ.
    num_posts: int = 0
    #: For same bits: the other candidates.
    others: tuple[Candidate, ...] = ()
    #: For aborts: the wait that requires one post too many.
    wait: int = 0
    #: For detected faults: the workload for which the kernel is built.
    built_for: Workload | None = None
    #: SMs for CTAs; all others are reserved. 0 keeps the schedule's own reserve.
    num_sms: int = 0

    def on(self, gpu: Gpu) -> Candidate:
        """The candidate for a GPU with as many SMs as `gpu`."""
        schedule = self.candidate.schedule
        if not self.num_sms or schedule is None:
            return self.candidate
        ordering = replace(schedule.ordering, reserved_sms=gpu.num_sms - self.num_sms)
        return replace(self.candidate, schedule=schedule.but(ordering=ordering))


#: Our kernel with every way of launching a pair.
OURS = tuple(kind for kind in PlanKind if kind.is_ours and kind.is_for(2))
#: The same without the plain fused launch, in which every shape runs anyway.
OTHERS = tuple(kind for kind in OURS if kind is not PlanKind.FUSED)
#: The kinds of `OTHERS` whose tasks wait for each other's signals.
SIGNALLING = tuple(kind for kind in OTHERS if kind.is_fused or kind is PlanKind.TWO_STREAMS)


def cross(
    table: str,
    group: str,
    schedules: Mapping[str, Schedule],
    workloads: Mapping[str, Workload],
    *,
    kinds: Iterable[PlanKind] = (PlanKind.FUSED,),
    claim: Claim = Claim.NUMBERS,
    **fields: Any,
) -> list[Case]:
    """Every schedule on every workload in every plan kind; two streams allow queues only."""
    return [
        Case(
            id="-".join((table, group, name, on, str(kind))),
            workload=workload,
            candidate=Candidate(plan_kind=kind, schedule=schedule),
            claim=claim,
            **fields,
        )
        for on, workload in workloads.items()
        for name, schedule in schedules.items()
        for kind in kinds
        if kind is not PlanKind.TWO_STREAMS or schedule.ordering.assignment.is_static
    ]


def named(schedules: Mapping[str, Schedule], *names: str) -> dict[str, Schedule]:
    """The schedules named `names`."""
    return {name: schedules[name] for name in names}


def of_claim(cases: Iterable[Case], claim: Claim) -> list[Case]:
    """A claim's cases. Cases of one workload are adjacent, so a session prepares it once."""
    groups: dict[Workload, list[Case]] = {}
    for case in cases:
        if case.claim is claim:
            groups.setdefault(case.workload, []).append(case)
    return [case for group in groups.values() for case in group]
