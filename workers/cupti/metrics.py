"""The metrics with descriptions of ours: unit, one sentence, and the base set. Any other metric of the GPU can be
requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES, DURATION_NS
from tuner.core.insight.waterfall import (
    ACTIVE_CYCLES,
    COUNTED_CLOCK,
    MEAN_TENSOR_CYCLES,
    MOST_TENSOR_CYCLES,
    TENSOR_OPERATIONS,
)

_OF_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
_OF_ACTIVE = "avg.pct_of_peak_sustained_active"


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """The description of a metric."""

    #: e.g. ``bytes``, ``%``; empty for a plain number.
    unit: str
    #: One sentence.
    description: str


#: Why a warp that could not issue had to wait. Source: CUPTI's own descriptions.
_STALLS = {
    "long_scoreboard": "data from global memory or the L2",
    "short_scoreboard": "data from shared memory",
    "barrier": "other warps at a barrier of the CTA",
    "membar": "a memory fence",
    "sleeping": "the end of a sleep between two polls of a signal",
    "math_pipe_throttle": "a busy arithmetic pipe, e.g. the tensor cores",
    "gmma": "warpgroup products in flight",
    "mio_throttle": "space in the queue of shared-memory instructions",
    "lg_throttle": "space in the queue of global-memory instructions",
    "wait": "a previous instruction with a fixed latency",
}

#: Metric -> its description; together they are the base set.
CATALOGUE: Mapping[str, MetricInfo] = {
    DURATION_NS: MetricInfo(unit="ns", description="Time of the run under the profiler, which slows it down."),
    DRAM_READ_BYTES: MetricInfo(unit="bytes", description="Bytes read from DRAM."),
    DRAM_WRITE_BYTES: MetricInfo(
        unit="bytes", description="Bytes written to DRAM, without those that are still in the L2 when the run ends."
    ),
    f"dram__throughput.{_OF_ELAPSED}": MetricInfo(
        unit="%", description="DRAM traffic as a share of the sustained maximum."
    ),
    "lts__t_bytes.sum": MetricInfo(unit="bytes", description="Bytes that passed through the L2."),
    "lts__t_sector_hit_rate.pct": MetricInfo(
        unit="%", description="Share of the 32-byte sectors requested from the L2 that were hits."
    ),
    f"sm__throughput.{_OF_ELAPSED}": MetricInfo(
        unit="%", description="Use of the busiest unit of the SMs as a share of its sustained maximum."
    ),
    f"sm__pipe_tensor_cycles_active.{_OF_ELAPSED}": MetricInfo(
        unit="%", description="Share of the time in which the tensor cores computed."
    ),
    COUNTED_CLOCK: MetricInfo(unit="gpc_cycle/s", description="SM clock of the counted run."),
    ACTIVE_CYCLES: MetricInfo(unit="gpc_cycle", description="Cycles in which an SM had a CTA, maximum over the SMs."),
    MOST_TENSOR_CYCLES: MetricInfo(
        unit="gpc_cycle", description="Cycles in which an SM's four tensor cores computed, maximum over the SMs."
    ),
    MEAN_TENSOR_CYCLES: MetricInfo(unit="gpc_cycle", description="The same, mean over the SMs."),
    TENSOR_OPERATIONS[0]: MetricInfo(unit="math_op", description="Operations of wgmma on fp16 elements."),
    TENSOR_OPERATIONS[1]: MetricInfo(unit="math_op", description="Operations of wgmma on bf16 elements."),
    "sm__inst_executed.sum": MetricInfo(unit="", description="Warp instructions executed."),
    "sm__inst_executed_pipe_tensor.sum": MetricInfo(
        unit="", description="Warp instructions executed by the tensor cores."
    ),
    "sm__inst_executed_pipe_tensor_op_gmma.sum": MetricInfo(
        unit="", description="Of these, instructions of warpgroup products (wgmma)."
    ),
    f"sm__warps_active.{_OF_ACTIVE}": MetricInfo(
        unit="%", description="Warps in flight as a share of the maximum, while the SMs are active."
    ),
    f"smsp__issue_active.{_OF_ACTIVE}": MetricInfo(
        unit="%", description="Share of the issue slots that were used, while the SMs are active."
    ),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": MetricInfo(
        unit="", description="Accesses to shared memory that were repeated because of bank conflicts."
    ),
    **{
        f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct": MetricInfo(
            unit="%", description=f"Share of the warps' time spent waiting for {what}."
        )
        for reason, what in _STALLS.items()
    },
}
BASE_SET = tuple(CATALOGUE)
