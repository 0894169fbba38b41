"""Schedules in which CTAs of several launches fit on an SM together, so that one fills its rings while another
computes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core.legal.launch_ops import rules_of
from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AnySpace, JointSpace


def has_launches_of_one(workload: Workload) -> bool:
    """Whether there are tile ops, and every launch has only one."""
    return max(map(len, workload.sides), default=0) == 1


def sharing_sms(space: AnySpace, guesses: Iterable[Schedule]) -> list[Schedule]:
    """The schedules whose CTAs fit on an SM together, if each launch op and each tile op has its own launch; otherwise
    empty."""
    if not isinstance(space, JointSpace) or not has_launches_of_one(space.workload):
        return []
    return [schedule for schedule in guesses if shares_an_sm(space, schedule)]


def shares_an_sm(space: JointSpace, schedule: Schedule) -> bool:
    """Whether a CTA of each launch op fits on an SM together with one of the tile ops' kernel."""
    if space.tiles is None:
        return False
    shared = dynamic_smem_bytes(space.tiles.workload, schedule.tiling)
    pairs = zip(space.workload.launch_ops, schedule.launch_ops, strict=True)
    most = max(rules_of(op).resources_of(op, one).smem_bytes for op, one in pairs)
    return most + shared + 2 * SMEM_RESERVED_PER_CTA_BYTES <= space.gpu.smem_per_sm_bytes
