"""Launches whose neighbouring CTAs start together on neighbouring SMs: a cluster as an attribute of the launch alone.

The kernel knows of no cluster: each CTA works as if it were alone. The hardware places the CTAs of a cluster on one GPC
at one time, wherever the launch before leaves room. So CTAs that read the same weights stay side by side.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice, check, launch_config, programmatic_attribute
from tuner.workers.source.launch_args import OpBuffers, needs_co_residency
from tuner.workers.source.launchable import Launchable, LaunchRefused


def _attribute(name: str) -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, name)
    return attribute


class GangKernel(Kernel):
    """A kernel without clusters, whose CTAs are placed `gang` by `gang`."""

    def __init__(self, launchable: Launchable, gang: int) -> None:
        super().__init__(launchable)
        self.gang = gang

    def check_fits(self, num_ctas: int) -> None:
        """Whether the card holds so many CTAs at once, gang by gang.

        Raises:
            LaunchRefused: it does not.
        """
        config = launch_config(num_ctas, self.num_threads, self.smem_bytes, 0)
        config.attrs, config.numAttrs = [self._together()], 1
        held = int(check(driver.cuOccupancyMaxActiveClusters(self._function, config)))
        if num_ctas % self.gang or num_ctas > held * self.gang:
            raise LaunchRefused(f"{num_ctas} CTAs in gangs of {self.gang}, of which the card holds {held}")

    def _together(self) -> Any:
        cluster = _attribute("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = self.gang, 1, 1
        return cluster

    def launch(self, plan: PlanOnDevice, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """As a kernel's, with the gang; the grid must be a multiple of it."""
        args = plan.parameter(ops)
        buffer = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        config = launch_config(plan.plan.plan.num_ctas, self.num_threads, self.smem_bytes, stream)
        cluster = self._together()
        config.attrs = [cluster]
        if plan.programmatic:
            config.attrs = [cluster, programmatic_attribute()]
        elif needs_co_residency(plan.plan):
            cooperative = _attribute("CU_LAUNCH_ATTRIBUTE_COOPERATIVE")
            cooperative.value.cooperative = 1
            config.attrs = [cluster, cooperative]
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))
