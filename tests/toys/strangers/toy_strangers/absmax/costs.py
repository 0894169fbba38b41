"""Costs: bytes at the DRAM's rate, and the launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toy_strangers.absmax.op import AbsmaxOp
from tuner.extend import Gpu, LaunchTimeline, TimedTask, Workload, rates_of


def _bytes_us(op: AbsmaxOp, gpu: Gpu) -> float:
    return 1e6 * 6 * op.m * op.n / gpu.dram_bytes_per_s


def launch_us(op: AbsmaxOp, schedule: Any, plan: Any, gpu: Gpu) -> float:
    """The microseconds of the bytes, and of the DRAM's latency for each wave."""
    rates, waves = rates_of(gpu), -(-plan.num_ctas * schedule.threads // (2048 * gpu.num_sms))
    return rates.launch_us + _bytes_us(op, gpu) + waves * rates.dram_latency_us


def timeline(op: AbsmaxOp, schedule: Any, plan: Any, gpu: Gpu) -> LaunchTimeline:
    """One task per CTA."""
    begin_us = rates_of(gpu).launch_us
    end_us = begin_us + rates_of(gpu).dram_latency_us
    tasks = (TimedTask(cta=i, tile=(i, 0), times_us=(begin_us, end_us, end_us, end_us)) for i in range(plan.num_ctas))
    return LaunchTimeline(num_ctas=plan.num_ctas, tasks=tuple(tasks))


def library_us(ops: Sequence[AbsmaxOp], workload: Workload, gpu: Gpu) -> float:
    """The microseconds of two kernels, each of which reads the whole input."""
    return sum(2 * rates_of(gpu).launch_us + 2 * _bytes_us(op, gpu) for op in ops)
