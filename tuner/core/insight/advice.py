"""What limits a measured kernel, and what to try: from its time and its counters, like Nsight Compute's rules.

Source of the thresholds: the "speed of light" rules of Nsight Compute, by which a unit above 80 % of its peak limits a
kernel, and one with every unit below 60 % is limited by latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.core.problem.gpu import Gpu

#: Shares of a unit's peak: a unit at or above the first limits the kernel; if all are below the second, latency does.
_BOUND, _LATENCY = 0.8, 0.6
#: Bytes read divided by the minimum: at this ratio or above, a different order can help.
_WASTE = 1.1


class Bound(StrEnum):
    """What limits the run."""

    DRAM = "DRAM"
    TENSOR = "tensor cores"
    LATENCY = "latency"
    MIXED = "no unit alone"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Advice for one measured kernel."""

    bound: Bound
    #: Shares of the data sheet's rates, 0 to 1, or above if caches help.
    dram_share: float
    tensor_share: float
    #: Bytes read from DRAM divided by the minimum for a run with cold caches; None without counters.
    over_floor: float | None
    #: What to try, in sentences, most promising first.
    tries: tuple[str, ...]


def advise(gpu: Gpu, *, time_us: float, num_flops: float, moved_bytes: float, over_floor: float | None) -> Advice:
    """What limits a run of `time_us` microseconds that moved `moved_bytes` to and from DRAM and did `num_flops`
    operations on the tensor cores, and what to try."""
    dram_share = moved_bytes / (time_us * 1e-6) / gpu.dram_bytes_per_s
    tensor_share = num_flops / (time_us * 1e-6) / gpu.tensor_flops_per_s
    shares = {Bound.DRAM: dram_share, Bound.TENSOR: tensor_share}
    bound = max(shares, key=lambda unit: shares[unit])
    if shares[bound] < _BOUND:
        bound = Bound.LATENCY if shares[bound] < _LATENCY else Bound.MIXED
    wastes = over_floor is not None and over_floor > _WASTE
    return Advice(
        bound=bound,
        dram_share=dram_share,
        tensor_share=tensor_share,
        over_floor=over_floor,
        tries=_tries(bound, wastes=wastes, is_counted=over_floor is not None),
    )


def _tries(bound: Bound, *, wastes: bool, is_counted: bool) -> tuple[str, ...]:
    fewer_bytes = "try another raster, or larger tiles, so that a panel is still in the L2 when it is read again"
    match bound:
        case Bound.DRAM if wastes:
            return (fewer_bytes, "try an ordering policy: the job lists the time of each")
        case Bound.DRAM:
            least = "it reads little more than the minimum: " if is_counted else ""
            return (
                f"{least}only moving fewer bytes helps, e.g. a narrower dtype, or "
                "more rows for each read of the weights",
            )
        case Bound.TENSOR:
            return (
                "use the wgmma engine and its largest tiles, if another engine was used",
                "use less power, since the power limit lowers the clocks",
            )
        case Bound.LATENCY:
            return (
                "look at the timeline: which phase is long, and which tasks wait",
                "use more stages in the ring, or more CTAs per SM, so that more loads are in flight",
                "split k, or use smaller tiles, if there are fewer tasks than SMs",
                "signal each slice instead of whole rows, so that consumers start earlier",
            )
        case Bound.MIXED:
            first = (fewer_bytes,) if wastes else ()
            return (*first, "overlap more: more stages, a programmatic launch, or two tasks per SM at a time")
