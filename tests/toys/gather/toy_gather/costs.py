"""Costs of a gather: bytes at the DRAM's rate, and a launch."""

from __future__ import annotations

from collections.abc import Sequence

from toy_gather.op import GatherOp
from toy_gather.plans import GatherPlan
from toy_gather.schedule import GatherSchedule
from tuner.extend import Gpu, LaunchTimeline, TimedTask, Workload, rates_of


def _bytes_us(op: GatherOp, gpu: Gpu, size_bytes: int = 2) -> float:
    return 1e6 * 3 * op.m * op.n * size_bytes / gpu.dram_bytes_per_s


def launch_us(op: GatherOp, schedule: GatherSchedule, plan: GatherPlan, gpu: Gpu) -> float:
    """The microseconds of waves of CTAs, each with the DRAM's latency."""
    waves = -(-plan.num_ctas // (gpu.num_sms * (2048 // schedule.threads)))
    rates = rates_of(gpu)
    return rates.launch_us + _bytes_us(op, gpu) + waves * plan.rows_per_cta * rates.dram_latency_us


def timeline(op: GatherOp, schedule: GatherSchedule, plan: GatherPlan, gpu: Gpu) -> LaunchTimeline:
    """A task is a row; those of a CTA run in sequence."""
    rates = rates_of(gpu)
    tasks = []
    for cta in range(plan.num_ctas):
        begin_us = rates.launch_us
        for row in plan.rows_of(cta, op):
            end_us = begin_us + rates.dram_latency_us
            tasks.append(TimedTask(cta=cta, tile=(row, 0), times_us=(begin_us, end_us, end_us, end_us)))
            begin_us = end_us
    return LaunchTimeline(num_ctas=plan.num_ctas, tasks=tuple(tasks))


def library_us(ops: Sequence[GatherOp], workload: Workload, gpu: Gpu) -> float:
    """The microseconds of two kernels: an index_select, and an addition that reads its result again."""
    return sum(2 * rates_of(gpu).launch_us + 2 * _bytes_us(op, gpu) for op in ops)
