"""Rules for ops with their own launches: common ones, and those of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import OpSchedule, UnknownSchedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import IllegalSchedule


class Rules(Protocol):
    """The module ``rules`` that a kind of launch op provides."""

    def refuse(self, workload: Workload, gpu: Gpu, op: Any, schedule: Any) -> str | None:
        """Why a schedule of the op cannot be compiled, does not fit the GPU, or is not the simplest name of its
        plan."""

    def resources_of(self, op: Any, schedule: Any) -> Resources:
        """Resources of a CTA in its launch."""


def rules_of(op: LaunchOp) -> Rules:
    """The rules of an op's kind.

    Raises:
        IllegalSchedule: the kind is unknown, or has no rules.
    """
    rules = part_of(op.KIND, "rules")
    if rules is None:
        raise IllegalSchedule(
            f"{op.describe()}: this program has no rules for this kind of op, so no schedule of it is legal"
        )
    return cast(Rules, rules)


def launch_ops_problem(workload: Workload, gpu: Gpu, schedules: Sequence[OpSchedule]) -> str | None:
    """The first problem of any launch op's schedule."""
    if len(schedules) != len(workload.launch_ops):
        what = workload.launch_ops[0].KIND if workload.launch_ops else schedules[0].kind
        return f"{len(schedules)} {what} schedules for {len(workload.launch_ops)} {what}s: pass one for each"
    for op, one in zip(workload.launch_ops, schedules, strict=True):
        if isinstance(one, UnknownSchedule):
            return f"{one}: pass a schedule of {op.KIND or 'a known kind'} for {op.name}"
        if one.kind != op.KIND:
            return f"a schedule of {one.kind or 'a product'} for {op.name}: pass one of {op.KIND}"
        if problem := rules_of(op).refuse(workload, gpu, op, one):
            return problem
    return None


def launch_kind_problem(workload: Workload, kind: PlanKind) -> str | None:
    """Why a launch op, and the tile ops around it, cannot be launched in a plan kind: the launch op has its own
    launch in every kind, and a kind fuses only tile ops on the same side of it."""
    if not kind.is_ours or _is_apart(kind):
        return None
    if workload.forced_starts:
        return _both_sides_problem(workload, kind, workload.forced_starts[0])
    where, what = "in front of" if workload.borders else "behind", _called(workload)
    if kind.is_in_runs and len(workload.tile_ops) == 2:
        return f"two products {where} {what} take one run or two: use fused_pdl or n_launches_pdl"
    if len(workload.tile_ops) > 1 and not kind.is_side_by_side:
        return None
    return f"{what} has its own launch, so no other plan kind is possible: use two_launches or two_launches_pdl"


def _called(workload: Workload) -> str:
    """Names the first launch op by its kind."""
    kind = workload.launch_ops[0].KIND if workload.launch_ops else "launch op"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _is_apart(kind: PlanKind) -> bool:
    return kind.is_apart and not kind.is_side_by_side


def _both_sides_problem(workload: Workload, kind: PlanKind, first_behind: int) -> str | None:
    """Why a plan kind without a launch per op cannot have tile ops on both sides of a launch op."""
    front, behind = workload.tile_ops[first_behind - 1].name, workload.tile_ops[first_behind].name
    stands = f"{_called(workload)} has its own launch between {front} and {behind}"
    if len(workload.tile_ops) == 2:
        kinds = [str(other) for other in PlanKind if _is_apart(other) and other.is_for(len(workload.ops))]
        return f"{stands}: use {' or '.join(kinds)}"
    if kind.is_in_runs:
        return None
    return f"{stands}, and no launch can span it: use runs, with one that begins at {behind}"
