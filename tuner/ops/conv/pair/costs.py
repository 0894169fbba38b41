"""Costs of a pair of convolutions in one CTA, for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tuner.core.model.forecast import PROGRAMMATIC_GAIN_US
from tuner.core.model.launch_ops import LaunchTimeline, TimedTask
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.conv.costs import library_us as convs_us
from tuner.ops.conv.pair.geometry import BLOCK
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import ConvPairPlan
from tuner.ops.conv.pair.schedule import ConvPairSchedule

#: Fitted to 139 schedules of eight pairs on an H200 (benchmarks/results/h200/conv_in_one_cta.json), with a rank
#: correlation of 0.99: microseconds of a programmatic launch without tiles and of a round of tiles, cycles of a step
#: beside its products, and the share of the tensor cores' rate that products reach.
_LAUNCH_US, _ROUND_US, _STEP_CYCLES, _PRODUCT_SHARE = 3.42, 0.26, 17.0, 0.96
#: Microseconds per KiB of a patch, and per MB of all images read and written.
_PATCH_US_PER_KIB, _US_PER_MB = 0.026, 0.245
#: Share of the SMs from which a launch leaves the next one too few to load its filters early; then its start, and each
#: KiB of its filters, take microseconds.
_CROWDED_SHARE, _CROWDED_US, _FILTER_US_PER_KIB = 0.455, 1.04, 0.0174
#: Microseconds of a round for the barriers of warpgroups that share a tile; not measured.
_TOGETHER_US = 0.3
#: Channels of a step, and cycles of 8 columns of one.
_STEP_CHANNELS, _CYCLES_PER_COLUMNS = 16, 4


class _Round(NamedTuple):
    """Times of a round of tiles, microseconds: until its images have arrived, and for each product."""

    copy_us: float
    first_us: float
    second_us: float


def launch_us(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan, gpu: Gpu) -> float:
    """The time of rounds of tiles, and of loading filters where the previous launch leaves too few SMs for it."""
    images_mb = 2e-6 * (op.first.source_shape[0] * op.channels + op.m * op.filters * (1 + op.second.residual))
    used_us = _start_us(plan, gpu) + images_mb * _US_PER_MB
    return used_us + _rounds(schedule, plan) * sum(_round_of(op, schedule, plan, gpu))


def timeline(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan, gpu: Gpu) -> LaunchTimeline:
    """The tiles of each CTA, one round after the other."""
    of_round, start_us = _round_of(op, schedule, plan, gpu), _start_us(plan, gpu)
    across, tasks = plan.geometry.tile_columns, list[TimedTask]()
    for cta in range(plan.num_ctas):
        for number in range(_rounds(schedule, plan)):
            begin_us = start_us + number * sum(of_round)
            loaded_us = begin_us + of_round.copy_us
            ended_us = loaded_us + of_round.first_us + of_round.second_us
            for team in range(schedule.num_teams):
                tile = cta + (number * schedule.num_teams + team) * plan.num_ctas
                if tile < plan.num_tiles:
                    line, column = divmod(tile, across)
                    place = (line, column)
                    times = (begin_us, loaded_us, ended_us, ended_us)
                    tasks.append(TimedTask(cta=cta, tile=place, times_us=times))
    return LaunchTimeline(num_ctas=plan.num_ctas, tasks=tuple(tasks))


def library_us(ops: Sequence[ConvPairOp], workload: Workload, gpu: Gpu) -> float:
    """The time of a fused kernel for each convolution."""
    return convs_us([conv for op in ops for conv in (op.first, op.second)], workload, gpu)


def _rounds(schedule: ConvPairSchedule, plan: ConvPairPlan) -> int:
    return -(-plan.num_tiles // (plan.num_ctas * schedule.num_teams))


def _start_us(plan: ConvPairPlan, gpu: Gpu) -> float:
    """Until a plain launch has its filters."""
    crowded_us = _CROWDED_US + sum(plan.geometry.filter_bytes) / 1024 * _FILTER_US_PER_KIB
    is_crowded = plan.num_ctas > _CROWDED_SHARE * gpu.num_sms
    return _LAUNCH_US + PROGRAMMATIC_GAIN_US + is_crowded * crowded_us


def _round_of(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan, gpu: Gpu) -> _Round:
    geometry = plan.geometry
    copied_kib = schedule.num_teams * geometry.patch.rows * geometry.patch.columns * op.channels * 2 / 1024
    blocks = op.filters // BLOCK // (schedule.team if geometry.splits_filters else 1)
    products = (
        (op.first.k // _STEP_CHANNELS * (op.between // BLOCK), geometry.patch.share),
        (op.second.k // _STEP_CHANNELS * blocks, geometry.middle.share),
    )
    columns_cycles = _CYCLES_PER_COLUMNS / 8 * schedule.warpgroups / _PRODUCT_SHARE
    first_us, second_us = (
        steps * (columns * columns_cycles + _STEP_CYCLES) / gpu.clock_mhz for steps, columns in products
    )
    copy_us = _ROUND_US + schedule.together * _TOGETHER_US + copied_kib * _PATCH_US_PER_KIB
    return _Round(copy_us=copy_us, first_us=first_us, second_us=second_us)
