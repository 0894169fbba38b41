"""Resources of a CTA, and how many CTAs fit on an SM."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu

#: Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_THREADS_PER_CTA = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTER_UNIT_PER_WARP = 256
#: Schedulers per SM, over which the warps of a CTA are distributed evenly. Each has an equal share of the registers.
_SCHEDULERS = 4


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of one CTA of the kernel."""

    #: Threads, a multiple of 32.
    num_threads: int
    #: Static and dynamic shared memory, bytes.
    smem_bytes: int
    #: 32-bit registers per thread.
    registers_per_thread: int
    #: CTAs per cluster; a plan counts a cluster as one CTA.
    cluster_size: int = 1

    @property
    def registers_per_cta(self) -> int:
        """Registers as they are allocated: whole units per warp."""
        per_warp = -(-self.registers_per_thread * 32 // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
        return per_warp * (self.num_threads // 32)


def most_registers(num_threads: int, gpu: Gpu) -> int:
    """Maximum registers per thread if an SM must hold a CTA of `num_threads` threads; the scheduler with the most warps
    is the limit."""
    of_scheduler = -(-num_threads // (32 * _SCHEDULERS))
    of_warp = gpu.registers_per_sm // _SCHEDULERS // of_scheduler
    return min(MAX_REGISTERS_PER_THREAD, of_warp // REGISTER_UNIT_PER_WARP * REGISTER_UNIT_PER_WARP // 32)


def occupancy(resources: Resources, gpu: Gpu) -> int:
    """CTAs that fit on an SM at a time; 0 if not even one fits."""
    return min(occupancy_limits(resources, gpu).values())


def occupancy_limits(resources: Resources, gpu: Gpu) -> dict[str, int]:
    """CTAs that fit on an SM, by the limiting resource."""
    fits = (
        resources.smem_bytes <= gpu.smem_per_cta_bytes
        and resources.num_threads <= MAX_THREADS_PER_CTA
        and resources.registers_per_thread <= MAX_REGISTERS_PER_THREAD
    )
    return {
        "the limits of one CTA": gpu.threads_per_sm // 32 if fits else 0,
        "threads": gpu.threads_per_sm // resources.num_threads,
        "registers": gpu.registers_per_sm // max(1, resources.registers_per_cta),
        "shared memory": gpu.smem_per_sm_bytes // (resources.smem_bytes + SMEM_RESERVED_PER_CTA_BYTES),
    }
