"""Every pair of values of the run-time axes in combination: proven, and run in a random interleaving."""

from __future__ import annotations

import random
from collections.abc import Hashable
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support.cases import chain_of_three, small_gpu, tiling
from tests.support.covering import covering_sample
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.lanes import soak_unless
from tests.support.spaces import space_of
from tuner.core.legal.legality import estimated_resources
from tuner.core.legal.ordering_rules import RUN_AHEADS
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import InterleaveKind, Ordering, Raster, RasterKind, SplitOrder, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.ordering_values import ASSIGNMENTS, INTERLEAVES, RASTERS, SYNCS
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: 20 x 18 and 20 x 12 tiles on 17 SMs, so that no offered value is a second name of another value.
PAIR = ffn_pair(m=320, d_in=32, d_hidden=18 * 32, d_out=12 * 32)
BESIDE = independent_pair((320, 18 * 32, 32), (160, 9 * 32, 64))
CHAIN = chain_of_three(96, (32, 160, 96, 128))
#: The op whose tiles are split.
PARTS = ffn_pair(m=80, d_in=96, d_hidden=10 * 32, d_out=64)
GPU = small_gpu(17)


#: With its 9 x 5 and 9 x 4 tiles, most CTAs have a tile of the last wave, which is split.
TAILED = ffn_pair(m=144, d_in=64, d_hidden=5 * 32, d_out=4 * 32)


def tiles_of(workload: Workload) -> Tiling:
    split = (2, 3) if workload in (PARTS, TAILED) else ()
    return tiling(*((16, 32) for _ in workload.tile_ops), split=split)


def axes(ordering: Ordering) -> tuple[Hashable, ...]:
    """The axes to be combined in pairs; the ops' rasters are equal, so one op's represents them all."""
    return (
        ordering.rasters[0],
        ordering.interleave,
        (ordering.granularity, ordering.sync_width),
        ordering.wait_position,
        (ordering.split_order, ordering.part_major),
        ordering.run_ahead,
        ordering.assignment,
        (ordering.ctas_per_sm, ordering.reserved_sms),
        (ordering.split_tiles, ordering.part_major),
    )


@cache
def covering(workload: Workload) -> list[Ordering]:
    legal = space_of(workload, GPU).orderings(tiles_of(workload))
    rng = random.Random(0)
    return covering_sample([legal[legal.draw(rng)] for _ in range(6000)], axes)


# In CI, tests/unit/core/proof proves random plans, and unequal heights are proven here.
@pytest.mark.soak
@pytest.mark.parametrize("share", [8, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "workload",
    soak_unless(lambda _, one: one in (CHAIN, PARTS), [PAIR, BESIDE, CHAIN, PARTS, TAILED]),
    ids=Workload.describe,
)
def test_every_pair_of_values_is_proven_and_computes_the_product(workload: Workload, share: int) -> None:
    tensors = random_tensors(workload, 0)
    wanted = plain_product(workload, tensors)
    for seed, ordering in enumerate(covering(workload)):
        schedule = Schedule.of(tiling=tiles_of(workload), ordering=ordering)
        (verified,) = plans_for(workload, GPU, Candidate(plan_kind=PlanKind.FUSED, schedule=schedule))
        if seed % (8 if workload is PAIR else share) == 0:  # all are proven and timed, and a sample is run
            outputs = interpret(verified.plan, verified.graph, tensors, random.Random(seed))
            for name, matrix in wanted.items():
                np.testing.assert_allclose(outputs[name], matrix, err_msg=str(ordering))
        assert simulate(verified).makespan_us > 0


def test_every_offered_value_is_legal_somewhere() -> None:
    seen: set[Hashable] = set()
    for workload in (PAIR, BESIDE, PARTS):
        seen.update(value for ordering in covering(workload) for value in axes(ordering))
    assert {
        *RASTERS,
        *SYNCS,
        *ASSIGNMENTS,
        *WaitPosition,
        *product(SplitOrder, (False, True)),
        *RUN_AHEADS[:2],
    } - seen == set()
    assert set(INTERLEAVES) - seen == set()


@pytest.mark.slow
def test_unequal_tile_heights_are_proven_under_every_signal_and_merge() -> None:
    workload = ffn_pair(m=384, d_in=32, d_hidden=256, d_out=256)
    for heights in ((128, 64), (64, 192), (128, 192)):
        tiles = tiling(*((height, 64) for height in heights), num_warps=8)
        graph = tile_graph(workload, tiles)
        resources = estimated_resources(workload, tiles)
        for ordering in list(space_of(workload, GPU).orderings(tiles))[::97]:
            verify(make_plan(graph, ordering, GPU), graph, resources, GPU)


def test_an_exact_path_is_an_order_like_any_other() -> None:
    workload = ffn_pair(m=64, d_in=32, d_hidden=128, d_out=128)
    graph = tile_graph(workload, tiles_of(workload))
    exact = Ordering(rasters=(Raster(kind=RasterKind.EXACT, width=4),) * 2)
    verified = verify(make_plan(graph, exact, GPU), graph, estimated_resources(workload, graph.tiling), GPU)
    assert verified.plan.tasks[:4, 1:3].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    tensors = random_tensors(workload, 0)
    outputs = interpret(verified.plan, graph, tensors, random.Random(0))
    np.testing.assert_allclose(outputs["down"], plain_product(workload, tensors)["down"])
    assert exact.interleave.kind is InterleaveKind.PRODUCER_FIRST
