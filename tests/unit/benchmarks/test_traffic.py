"""Traffic models compared with loops that are run, and with each other."""

from __future__ import annotations

from itertools import permutations, product
from math import prod
from typing import Any

import pytest

from benchmarks.orders.cases import CASES, Case, row_major, tilings_of
from benchmarks.traffic.models import (
    LOOPS,
    TENSORS,
    Pair,
    chimera,
    maestro,
    movement,
    optimus,
    pebbles,
    slices_of,
    tileflow,
    waves_of,
    welder,
)
from benchmarks.traffic.page import drawn
from tests.support.spaces import space_of
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import fused

H200 = CATALOGUE["h200"]
PLAIN = [case for case in CASES if case.name in ("llama3-8b/wgmma/m64", "llama3-8b/wgmma/m512")]
SMALL = Pair(m=64, k=96, h=128, o=32, num_weights=2, size_bytes=2)
SIZES = {"m": 32, "k": 32, "h": 64, "o": 32}


def plan_of(case: Case) -> VerifiedPlan:
    (plan,) = plans_for(case.workload, H200, fused(row_major(tilings_of(case, space_of(case.workload, H200))[0])))
    return plan


@pytest.fixture(scope="module")
def plans() -> dict[int, VerifiedPlan]:
    return {case.m: plan_of(case) for case in PLAIN}


def moved_by_a_nest(pair: Pair, sizes: dict[str, int], order: str, indices: str, num_weights: int) -> int:
    """The number of elements of a tensor that a loop nest loads if it keeps only the last block."""
    loaded, held = 0, None
    for block in product(*(range(getattr(pair, loop) // sizes[loop]) for loop in order)):
        place = tuple(block[order.index(loop)] for loop in indices)
        if place != held:
            loaded += prod(sizes[loop] for loop in indices) * num_weights
        held = place
    return loaded


@pytest.mark.parametrize("op", [0, 1])
def test_movement_is_what_a_nest_of_loops_loads_in_every_order(op: int) -> None:
    orders = ["".join(order) for order in permutations(LOOPS[op])]
    for order, (tensor, indices) in product(orders, TENSORS[op].items()):
        num_weights = SMALL.num_weights if tensor == "W1" else 1
        assert movement(SMALL, SIZES, order, tensor, LOOPS[op]) == moved_by_a_nest(
            SMALL, SIZES, order, indices, num_weights
        )


def test_one_nest_moves_what_the_paper_says() -> None:
    pair, trips = SMALL, {loop: getattr(SMALL, loop) // SIZES[loop] for loop in "mkho"}
    found = {name: movement(pair, SIZES, "mhk", name, "mhk") for name in ("X", "W1")}
    found |= {name: movement(pair, SIZES, "mho", name, "mho") for name in ("W2", "Y")}
    assert found == {
        "X": pair.m * pair.k * trips["h"],
        "W1": pair.num_weights * pair.k * pair.h * trips["m"],
        "W2": pair.h * pair.o * trips["m"],
        "Y": pair.m * pair.o,  # one block of columns, which stays cached while h runs
    }


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_no_model_is_below_the_bound_and_few_rows_need_each_byte_once(case: Case, plans: dict[int, Any]) -> None:
    bound, plan = pebbles(case.workload, H200), plans[case.m]
    chosen = [chimera(case.workload, H200), welder(case.workload, H200), optimus(case.workload, H200)]
    counted = tileflow(plan, H200)
    assert min(one.dram_bytes or 0 for one in (*chosen, counted, maestro(plan))) >= (bound.dram_bytes or 0) > 0
    assert min(one.l2_bytes for one in (*chosen, counted) if one.l2_bytes is not None) >= (bound.l2_bytes or 0) > 0
    assert (maestro(plan).l2_bytes or 0) < (counted.l2_bytes or 0), "one read serves several SMs"
    least = case.workload.compulsory_bytes
    assert chimera(case.workload, H200).dram_bytes == least == optimus(case.workload, H200).dram_bytes


def test_waves_have_every_task_once_and_slices_all_that_the_simulator_loads(plans: dict[int, VerifiedPlan]) -> None:
    for plan in plans.values():
        tasks = [task for wave in waves_of(plan) for task in wave]
        assert sorted(tasks) == list(range(plan.plan.num_tasks))
        assert max(map(len, waves_of(plan))) <= plan.plan.num_ctas
        asked = 2 * sum(prod(end - begin for begin, end in box) for task in tasks for _, box in slices_of(plan, task))
        assert asked == pytest.approx(simulate(plan).link_bytes, rel=0.01)


def test_tileflow_and_the_simulator_see_that_row_major_order_reads_weights_again(plans: dict[int, Any]) -> None:
    for found in (tileflow(plans[512], H200).dram_bytes, simulate(plans[512]).dram_bytes):
        assert (found or 0) > 1.3 * plans[512].graph.workload.compulsory_bytes
    assert tileflow(plans[64], H200).dram_bytes == pytest.approx(plans[64].graph.workload.compulsory_bytes, rel=0.01)


def test_the_page_says_what_is_missing_and_how_far_off_each_model_is() -> None:
    said = {"dram_bytes": 3e8, "l2_bytes": None}
    names = ("pebbles", "chimera", "welder", "optimus", "maestro", "tileflow", "simulator")
    row = {"pair": "p", "m": 64, "order": "best", "models": dict.fromkeys(names, said),
           "counters": {"dram__bytes_read.sum": 1.4e8, "dram__bytes_write.sum": 1e7}}  # fmt: skip
    meta = {"gpu": "g", "driver": "d", "cuda": "c", "commit": "0" * 40, "date": "t", "complete": True, "command": "run"}
    text = drawn({"meta": meta, "rows": [row]})
    assert "| p | 64 | best | 150 | 300 |" in text
    assert "| off by, on average | | |  | 2.00x |" in text
    assert "| p | 64 | best | – | – |" in text
