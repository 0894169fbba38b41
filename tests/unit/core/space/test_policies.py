from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import fork, small_gpu
from tests.support.interpret import interpret, plain_product, random_tensors
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile
from tuner.core.space.policies import (
    POLICIES,
    Choice,
    OpVariant,
    Planned,
    append,
    estimate_us,
    longest_first,
    searched,
    wavefront,
)
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Small tiles end earlier if there are CTAs for them; large ones take less time in total.
SMALL = OpVariant(tile=Tile(m=16, n=32, k=32), task_us=3.0)
LARGE = OpVariant(tile=Tile(m=32, n=64, k=32), task_us=8.0)


def choice(workload: Workload, num_sms: int, *variants: tuple[OpVariant, ...]) -> Choice:
    return Choice(
        workload=workload, gpu=small_gpu(num_sms), variants=variants or ((SMALL, LARGE),) * len(workload.tile_ops)
    )


WORKLOADS = [
    ffn_pair(m=70, d_in=32, d_hidden=96, d_out=70),
    independent_pair((64, 128, 32), (32, 64, 96)),
    fork(40, (32, 64, 96, 33)),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS, ids=Workload.describe)
def test_every_policy_gives_a_proven_plan_that_computes_the_product(name: str, workload: Workload) -> None:
    planned = POLICIES[name](choice(workload, 5))
    tensors = random_tensors(workload, 0)
    outputs = interpret(planned.plan.plan, planned.plan.graph, tensors, random.Random(0))
    for op, wanted in plain_product(workload, tensors).items():
        np.testing.assert_allclose(outputs[op], wanted)
    assert planned.plan.graph.tiling == planned.tiling


def tiles(planned: Planned) -> list[Tile]:
    return list(planned.tiling.tiles)


def test_a_wave_takes_fast_variants_while_ctas_last_and_then_frugal_ones() -> None:
    two = independent_pair((32, 64, 32), (32, 64, 32))  # four small tiles each, or one large
    assert tiles(wavefront(choice(two, 8))) == [SMALL.tile, SMALL.tile]
    assert tiles(wavefront(choice(two, 6))) == [SMALL.tile, LARGE.tile]
    pair = ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64)  # two waves, so each has all CTAs
    assert tiles(wavefront(choice(pair, 4))) == [SMALL.tile, SMALL.tile]


def test_variants_that_share_an_sm_are_capped_and_leave_room_for_fast_ones() -> None:
    small = OpVariant(tile=Tile(m=16, n=64, k=32), task_us=3.0)
    large = OpVariant(tile=Tile(m=32, n=128, k=32), task_us=8.0)
    two = independent_pair((64, 128, 32), (64, 128, 32))  # eight small tiles each, or two large
    alone = replace(choice(two, 8, (small, large), (small, large)), num_warps=8)
    shared = replace(alone, ctas_per_sm=2)
    assert tiles(wavefront(alone)) == [small.tile, large.tile]
    planned = wavefront(shared)
    assert tiles(planned) == [small.tile, small.tile]
    assert (planned.tiling.resident_ctas, planned.plan.plan.num_ctas) == (2, 16)
    assert wavefront(alone).tiling.resident_ctas == 1
    assert replace(shared, num_warps=4).tiling((small, small)).resident_ctas == 1  # with 4 warps, two fit anyway
    wide = OpVariant(tile=Tile(m=128, n=256, k=32), task_us=1.0)
    with pytest.raises(IllegalSchedule, match="use resident_ctas 1, or smaller tiles"):
        wavefront(replace(shared, variants=((wide,), (small,))))


def test_independent_ops_of_one_wave_run_side_by_side() -> None:
    two = independent_pair((32, 64, 32), (32, 64, 32))
    assert wavefront(choice(two, 8)).estimate_us == SMALL.task_us
    assert append(choice(two, 4)).estimate_us == 2 * SMALL.task_us


def test_append_waits_for_whole_groups_and_the_others_for_rows() -> None:
    pair = ffn_pair(m=64, d_in=32, d_hidden=32, d_out=32)
    assert append(choice(pair, 2)).plan.plan.num_signals == 1
    assert wavefront(choice(pair, 2, (SMALL,), (SMALL,))).plan.plan.num_signals == 4


def test_the_longest_tasks_come_first_by_what_was_measured() -> None:
    slow = OpVariant(tile=SMALL.tile, task_us=50.0)
    two = independent_pair((64, 64, 512), (16, 32, 32))
    planned = longest_first(choice(two, 3, (SMALL,), (slow,)))
    assert planned.plan.plan.tasks[0, 0] == 1
    assert planned.estimate_us == 50.0
    assert append(choice(two, 3, (SMALL,), (slow,))).estimate_us > 50.0


# In CI, other tests have the policies' plans.
@pytest.mark.soak
def test_a_search_is_no_worse_than_its_first_guess_and_repeats_itself() -> None:
    asked = choice(WORKLOADS[0], 5)
    assert searched(asked, num_tried=60).estimate_us <= searched(asked, num_tried=1).estimate_us
    assert (searched(asked).plan.words == searched(asked).plan.words).all()


def test_the_estimate_is_waves_of_measured_tasks() -> None:
    planned = append(choice(ffn_pair(m=64, d_in=32, d_hidden=64, d_out=32), 3, (SMALL,), (SMALL,)))
    assert estimate_us(planned.plan, {0: 10.0, 1: 1.0}) == 10.0 * 3 + 1.0 * 2


def test_what_a_policy_cannot_choose_from_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use 2 lists"):
        choice(WORKLOADS[0], 5, (SMALL,))
    spilling = OpVariant(tile=Tile(m=24, n=32, k=32), task_us=1.0)
    with pytest.raises(IllegalSchedule, match="multiples of 16"):
        wavefront(choice(WORKLOADS[0], 5, (spilling,), (SMALL,)))
