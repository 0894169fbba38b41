"""Schedules in which CTAs of several launches fit on one SM, so that one fills its rings while another runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tuner.core.legal.launch_ops import rules_of
from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.legal.wgmma import WARPS_PER_GROUP, stage_depths
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.joint import AnySpace, JointSpace
from tuner.core.space.space import Space

#: Up to this reference time, microseconds, the start of a launch matters: about 3 are between it and its first product.
SHORT_US = 20.0
#: Shorter rings have at least this many stages.
ENOUGH_STAGES = 4
#: The best schedules whose rings are shortened.
NUM_SHORTENED = 2


def has_launches_of_one(workload: Workload) -> bool:
    """Whether there is a tile op, and no launch computes two."""
    return max(map(len, workload.sides), default=0) == 1


def sharing_sms(space: AnySpace, guesses: Iterable[Schedule], best: Sequence[Schedule]) -> list[Schedule]:
    """Schedules of which CTAs of two launches fit on an SM. For launch ops and tile ops with one launch each, these are
    guesses; for tile ops alone, the best schedules with shorter rings; otherwise there are none."""
    if isinstance(space, Space):
        return list(_beside_the_next(space, best))
    if not isinstance(space, JointSpace) or not has_launches_of_one(space.workload):
        return []
    return [schedule for schedule in guesses if shares_an_sm(space, schedule)]


def shares_an_sm(space: JointSpace, schedule: Schedule) -> bool:
    """Whether a CTA of each launch op fits on an SM next to one of the tile ops' kernel."""
    if space.tiles is None:
        return False
    shared = dynamic_smem_bytes(space.tiles.workload, schedule.tiling)
    pairs = zip(space.workload.launch_ops, schedule.launch_ops, strict=True)
    most = max(rules_of(op).resources_of(op, one).smem_bytes for op, one in pairs)
    return most + shared + 2 * SMEM_RESERVED_PER_CTA_BYTES <= space.gpu.smem_per_sm_bytes


def _beside_the_next(space: Space, best: Iterable[Schedule]) -> Iterator[Schedule]:
    """Schedules with rings of half an SM: if the next launch begins early, its CTAs get their barriers, descriptors
    and first weights while this one runs. Several warpgroups take all registers of an SM."""
    if reference_us(space.workload, space.gpu) > SHORT_US:
        return
    alone = (one for one in best if one.tiling.engine is Engine.WGMMA and one.tiling.num_warps == WARPS_PER_GROUP)
    shorter = ((schedule, halved(space, schedule.tiling)) for schedule in islice(alone, NUM_SHORTENED))
    yield from filter(space.is_legal, (schedule.but(tiling=half) for schedule, half in shorter if half))


def halved(space: Space, tiling: Tiling) -> Tiling | None:
    """The tiling with the deepest rings that take half an SM, of lower stages if there are few; None if its own take no
    more, or not enough stages fit."""
    most_bytes = space.gpu.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES
    if dynamic_smem_bytes(space.workload, tiling) <= most_bytes:
        return None
    enough = (one for one in _shorter(space, tiling) if one.num_stages >= ENOUGH_STAGES)
    return next((one for one in enough if dynamic_smem_bytes(space.workload, one) <= most_bytes), None)


def _shorter(space: Space, tiling: Tiling) -> Iterator[Tiling]:
    """Legal ones with fewer stages in both rings, the deepest stages first, then the most."""
    deepest = max(tile.k for tile in tiling.tiles)
    for depth in sorted((one for one in stage_depths(space.workload.dtype) if one <= deepest), reverse=True):
        tiles = tuple(replace(tile, k=min(tile.k, depth)) for tile in tiling.tiles)
        for inputs in range(tiling.input_stages * deepest // depth, 1, -1):
            num_stages = max(2, inputs * tiling.num_stages // tiling.input_stages)
            window, ahead = (min(count, num_stages - 1) for count in (tiling.window, tiling.ahead_window))
            one = replace(tiling, tiles=tiles, input_stages=inputs, num_stages=num_stages)
            one = replace(one, window=window, ahead_window=ahead)
            if tiling_problem(space.workload, space.gpu, one) is None:
                yield one
