"""Every word of a plan has a range in which the device's 32-bit arithmetic does not overflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import SMALL, ordering, small_gpu, tiling, wgmma
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.resources import Resources
from tuner.core.proof.verify import verify
from tuner.errors import PlanError
from tuner.ops.gemm.pairs import ffn_pair

GPU = small_gpu(4)
PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
CLUSTERED = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=128, d_out=128), wgmma((16, 64, 64), cluster_n=2))


def with_a_wait_in_front(plan: Plan, threshold: int) -> Plan:
    """Gives the first waiting task an additional wait, before the others, for the same signals and with `threshold`."""
    task = int(np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])[0])
    begin, end = plan.tasks[task, 3:5].tolist()
    mine = plan.waits[begin:end]
    early = mine[:1].copy()
    early[0, 2] = threshold
    tasks = plan.tasks.copy()
    tasks[task, 3], tasks[task, 4] = len(plan.waits), len(plan.waits) + 1 + len(mine)
    return replace(plan, tasks=tasks, waits=np.concatenate((plan.waits, early, mine)))


@pytest.mark.parametrize("threshold", [-(2**31), -(2**31) + 1, -(2**30), -1, 2**30, 2**31 - 1])
def test_a_threshold_that_wraps_on_the_device_is_refused_in_front_of_a_correct_wait(threshold: int) -> None:
    """The device computes `(int)(seen - target) >= 0`: -2^31 is never reached, however many posts there are."""
    plan = with_a_wait_in_front(make_plan(PAIR, ordering(), GPU), threshold)
    with pytest.raises(PlanError, match="threshold"):
        verify(plan, PAIR, SMALL, GPU)


@pytest.mark.parametrize("threshold", [-(2**30), -(2**29), 2**29])
def test_a_threshold_that_wraps_once_the_ctas_of_a_cluster_are_counted_is_refused(threshold: int) -> None:
    """A cluster of two makes two posts for one of the plan's, so -2^30 becomes -2^31."""
    resources = Resources(num_threads=256, smem_bytes=16384, registers_per_thread=64, cluster_size=2)
    plan = with_a_wait_in_front(make_plan(CLUSTERED, ordering(), GPU), threshold)
    with pytest.raises(PlanError, match="threshold"):
        verify(plan, CLUSTERED, resources, GPU)
