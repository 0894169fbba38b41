"""Lower bounds of a workload's time on a GPU."""

from __future__ import annotations

from tuner.core.gpu import Gpu
from tuner.core.workload import Workload


def dram_us(workload: Workload, gpu: Gpu) -> float:
    """Time to move the compulsory bytes once at the data sheet's DRAM rate, microseconds."""
    return 1e6 * workload.compulsory_bytes / gpu.dram_bytes_per_s


def tensor_us(workload: Workload, gpu: Gpu) -> float:
    """Time of the products at the data sheet's dense tensor-core rate, microseconds."""
    return 1e6 * workload.num_flops / gpu.tensor_flops_per_s


def reference_us(workload: Workload, gpu: Gpu) -> float:
    """The roofline: no schedule is faster with cold caches, microseconds.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    return max(dram_us(workload, gpu), tensor_us(workload, gpu))
