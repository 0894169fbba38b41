from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from dataclasses import replace
from itertools import islice

import pytest

from tests.support.cases import (
    H200,
    INTERLEAVES_BY_NAME,
    SYNCS_BY_NAME,
    chain_of_three,
    small_gpu,
    wgmma,
)
from tests.support.cases import ordering as plain
from tests.support.cases import tiling as tiled
from tests.support.lanes import soak_unless
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import ASSIGNMENTS as ALL_ASSIGNMENTS
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    InterleaveKind,
    Ordering,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, PartSums, Tile, Tiling
from tuner.core.space.mma_tilings import MmaTilings
from tuner.core.space.ordering_values import ASSIGNMENTS, GRIDS, INTERLEAVES, RASTERS, SYNCS
from tuner.core.space.part_guesses import part_guesses
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

LLAMA = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
AMPERE = CATALOGUE["a100"]
#: Small enough to enumerate: a few tiles on 3 SMs.
SMALL_PAIR = ffn_pair(m=30, d_in=32, d_hidden=60, d_out=40)
TINY = space_of(SMALL_PAIR, small_gpu(7))


# In CI, another test counts a smaller space.
@pytest.mark.soak
def test_the_llama_pair_holds_ten_thousand_schedules_over_forty_tilings() -> None:
    space = space_of(LLAMA, H200)
    assert len(space.tilings) >= 40
    assert len(set(space.tilings)) == len(space.tilings)
    assert sum(len(space.orderings(tiling)) for tiling in space.tilings[::20]) >= 10_000


@pytest.mark.slow
def test_what_the_space_holds_is_legal_different_and_counted() -> None:
    schedules = list(TINY)
    assert len(schedules) == len(set(schedules)) == TINY.num_schedules
    for schedule in schedules[::7]:
        check_schedule(SMALL_PAIR, TINY.gpu, schedule)


def offered_ordering(num_ops: int, rng: random.Random) -> Ordering:
    """A combination of offered values, legal or not."""
    (granularity, sync_width), assignment = rng.choice(SYNCS), rng.choice(ASSIGNMENTS)
    ctas_per_sm, reserved_sms = rng.choice(GRIDS)
    return Ordering(
        rasters=tuple(rng.choice(RASTERS) for _ in range(num_ops)),
        interleave=rng.choice(INTERLEAVES),
        granularity=granularity,
        sync_width=sync_width,
        assignment=assignment,
        ctas_per_sm=ctas_per_sm,
        reserved_sms=reserved_sms,
        wait_position=rng.choice(tuple(WaitPosition)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    soak_unless(
        lambda place, _: place in (1, 3),
        [
            ffn_pair(m=48, d_in=32, d_hidden=96, d_out=64),
            ffn_pair(m=16, d_in=32, d_hidden=200, d_out=64),
            ffn_pair(m=32, d_in=32, d_hidden=96, d_out=128),
            independent_pair((64, 64, 32), (32, 96, 32)),
            independent_pair((32, 32, 32), (32, 64, 96)),
        ],
    ),
    ids=Workload.describe,
)
def test_every_legal_ordering_is_another_plan_and_no_plan_is_lost(workload: Workload) -> None:
    gpu = small_gpu(9)
    space = space_of(workload, gpu)
    tiling: Tiling = space.tilings[0]
    graph = tile_graph(workload, tiling)
    legal: dict[bytes, list[Ordering]] = defaultdict(list)
    for ordering in space.orderings(tiling):
        if ordering.run_ahead != 100:  # has its own word, whatever the rest: see test_waits.py
            continue
        legal[hashlib.sha256(make_plan(graph, ordering, gpu).words).digest()].append(ordering)
    doubles = [orderings for orderings in legal.values() if len(orderings) > 1]
    # With as many CTAs as tile rows, shares of one raster can equal the strides of another: two assignments, but the
    # same queues.
    assert all(len({ordering.assignment for ordering in same}) == len(same) for same in doubles)
    plain = {"granularity": Granularity.ROW, "sync_width": 1, "wait_position": WaitPosition.TASK}
    assert len({tuple(replace(ordering, **plain) for ordering in same) for same in doubles}) < 3
    rng = random.Random(0)
    for _ in range(1000):
        ordering = offered_ordering(len(workload.tile_ops), rng)
        if not stands_alone(ordering):
            plan = make_plan(graph, ordering, gpu)
            assert hashlib.sha256(plan.words).digest() in legal, f"{ordering} is lost"


def stands_alone(ordering: Ordering) -> bool:
    """Whether its values may contradict each other, so that it has no simpler equivalent."""
    return ordering.granularity is Granularity.BARRIER or ordering.interleave.kind is InterleaveKind.PROPORTIONAL


def test_what_no_schedule_near_the_best_uses_is_legal_by_name_and_not_offered() -> None:
    workload, shape = ffn_pair(m=256, d_in=64, d_hidden=256, d_out=256), tiled((16, 32), (16, 32))
    for interleave in INTERLEAVES_BY_NAME:
        assert interleave not in INTERLEAVES
        check_schedule(workload, H200, Schedule.of(tiling=shape, ordering=plain(interleave=interleave)))
    for granularity, width in SYNCS_BY_NAME:
        assert (granularity, width) not in SYNCS
        batches = plain(granularity=granularity, sync_width=width)
        check_schedule(workload, H200, Schedule.of(tiling=shape, ordering=batches))
    assert set(ALL_ASSIGNMENTS) - set(ASSIGNMENTS) == {Assignment.SHARES}
    check_schedule(workload, H200, Schedule.of(tiling=shape, ordering=plain(assignment=Assignment.SHARES)))


def test_orderings_are_a_sequence() -> None:
    orderings = TINY.orderings(TINY.tilings[0])
    assert orderings[-1] == list(orderings)[len(orderings) - 1]
    assert orderings[2:4] == [orderings[2], orderings[3]]
    with pytest.raises(IndexError):
        orderings[len(orderings)]


# In CI, what the space holds is legal, different and counted.
@pytest.mark.soak
def test_a_sample_gives_every_tiling_its_turn_and_repeats_nothing() -> None:
    space = space_of(LLAMA, AMPERE)
    num_tilings = len(space.tilings)
    sample = space.sample(random.Random(1), 2 * num_tilings)
    assert len(set(sample)) == len(sample) == 2 * num_tilings
    assert {schedule.tiling for schedule in sample[:num_tilings]} == set(space.tilings)
    assert sample == space.sample(random.Random(1), 2 * num_tilings)
    assert sample[:50] != space.sample(random.Random(2), 50)


# In CI, a sample gives every tiling its turn.
@pytest.mark.soak
@pytest.mark.parametrize("m", soak_unless(lambda _, m: m == 16, [16, 512]))
def test_a_sample_gives_each_engine_its_half(m: int) -> None:
    space = space_of(replace_m(m), H200)
    engines = (Engine.MMA, Engine.WGMMA)
    by_engine = {engine: {t for t in space.tilings if t.engine is engine} for engine in engines}
    count = 2 * min(map(len, by_engine.values()))
    sample = space.sample(random.Random(1), count + 1)
    assert len(set(sample)) == count + 1
    for engine, tilings in by_engine.items():
        drawn = [schedule.tiling for schedule in sample[:count] if schedule.tiling.engine is engine]
        assert len(drawn) == len(set(drawn)) == count // 2
        assert set(drawn) <= tilings


def test_grids_that_give_each_task_of_an_op_a_cta_are_offered() -> None:
    space = space_of(LLAMA, H200)
    tiling = wgmma((16, 240, 64), (16, 32, 256))
    parted = replace(tiling, split_k=(2, 1))  # 2 x 60 tasks and 128 of 132 SMs
    assert {ordering.reserved_sms for ordering in space.orderings(parted)} == {0, 4, 12}
    assert {ordering.reserved_sms for ordering in space.orderings(tiling)} == {0, 4}
    near = space.neighbours(Schedule.of(tiling=parted, ordering=plain()))
    assert {0, 4, 12} == {other.ordering.reserved_sms for other in near}


def test_neighbours_of_a_wgmma_schedule_are_of_its_engine_and_change_one_thing() -> None:
    space = space_of(LLAMA, H200)
    first = wgmma((16, 112, 128), (16, 64, 128), num_stages=6, input_stages=4, split_k=(1, 2))
    near = space.neighbours(Schedule.of(tiling=first, ordering=plain()))
    tilings = [other.tiling for other in near if other.tiling != first]
    assert len(set(near)) == len(near)
    assert {tiling.engine for tiling in tilings} == {Engine.WGMMA}
    assert {first.tiles[1]} < {tiling.tiles[1] for tiling in tilings}
    assert {tiling.num_parts(1) for tiling in tilings if tiling.tiles == first.tiles} == {1, 2, 3, 4}
    assert {3, 4, 5} < {tiling.input_stages for tiling in tilings}
    assert {0, 1, 2, 3, 4, 5} == {tiling.window for tiling in tilings} == {tiling.ahead_window for tiling in tilings}
    assert {4, 5, 6} < {tiling.num_stages for tiling in tilings if tiling.tiles == first.tiles}
    [wider] = [tiling for tiling in tilings if tiling.tiles[0] == Tile(m=16, n=224, k=64)]
    assert (wider.num_parts(0), wider.num_stages) == (2, 6)
    for tiling in tilings:
        shapes = [(tiling.tiles[op], tiling.num_parts(op)) != (first.tiles[op], first.num_parts(op)) for op in (0, 1)]
        assert (tiling.weight_hint, tiling.intermediate_hint) == (first.weight_hint, first.intermediate_hint)
        single = ("input_stages", "window", "warpgroups", "ahead_window", "swap_ab", "epilogue", "startup_prefetch",
                  "part_sums")  # fmt: skip
        numbers = [getattr(tiling, name) != getattr(first, name) for name in single]
        changes = [*shapes, *numbers]
        if tiling.cluster_k > 1:  # CTAs that split K have no parts
            assert not any(numbers[:3])
            assert tiling.split_k == ()
        else:
            assert sum(changes) == 1 or (not any(changes) and tiling.num_stages != first.num_stages)


def test_a_sample_larger_than_the_space_is_the_space() -> None:
    space = space_of(ffn_pair(m=1, d_in=1, d_hidden=1, d_out=1), H200)
    assert set(space.sample(random.Random(0), 10**6)) == set(space)


def differences(a: Schedule, b: Schedule) -> set[str]:
    axes = {
        "m": [tile.m for tile in a.tiling.tiles] != [tile.m for tile in b.tiling.tiles],
        "k": [tile.k for tile in a.tiling.tiles] != [tile.k for tile in b.tiling.tiles],
    }
    for op, (one, other) in enumerate(zip(a.tiling.tiles, b.tiling.tiles, strict=True)):
        axes[f"n{op}"] = one.n != other.n
        axes[f"raster{op}"] = a.ordering.rasters[op] != b.ordering.rasters[op]
    for field in ("num_stages", "num_warps", "weight_hint", "intermediate_hint"):
        axes[field] = getattr(a.tiling, field) != getattr(b.tiling, field)
    of_ordering = ("interleave", "ctas_per_sm", "reserved_sms", "part_major", "run_ahead")
    for field in (*of_ordering, "split_order", "split_tiles"):
        axes[field] = getattr(a.ordering, field) != getattr(b.ordering, field)
    for together in (("granularity", "sync_width", "wait_position"), ("assignment", "partition")):
        axes[together[0]] = any(getattr(a.ordering, field) != getattr(b.ordering, field) for field in together)
    return {axis for axis, differs in axes.items() if differs}


@pytest.mark.slow
def test_strided_parts_are_offered_where_they_wait_by_slice() -> None:
    space = space_of(LLAMA, H200)
    split = next(chosen for chosen in space.tilings if chosen.engine is Engine.WGMMA and chosen.num_parts(1) == 4)
    whole = next(chosen for chosen in space.tilings if not chosen.split_k)

    def offered(tiles: Tiling) -> set[tuple[SplitOrder, WaitPosition]]:
        rng, orders = random.Random(0), space.orderings(tiles)
        drawn = (orders[orders.draw(rng)] for _ in range(300))
        return {(order.split_order, order.wait_position) for order in drawn}

    assert {order for order, _ in offered(whole)} == {SplitOrder.CONTIGUOUS}
    assert offered(split) == {
        (SplitOrder.CONTIGUOUS, WaitPosition.TASK),
        (SplitOrder.CONTIGUOUS, WaitPosition.SLICE),
        (SplitOrder.STRIDED, WaitPosition.SLICE),
    }


# In CI, test_small_pairs.py has signals with places to wait, and another test a wgmma schedule's tilings.
@pytest.mark.soak
def test_neighbours_are_the_legal_schedules_that_differ_in_one_axis() -> None:
    everything = list(TINY)
    for schedule in TINY.sample(random.Random(3), 4):
        neighbours = TINY.neighbours(schedule)
        assert len(set(neighbours)) == len(neighbours)
        hinted = {one for one in neighbours if "hint" in str(differences(schedule, one))}  # these alone are not offered
        assert set(neighbours) - hinted == {other for other in everything if len(differences(schedule, other)) == 1}
        assert {len(differences(schedule, one)) for one in hinted} == {1}


def test_offered_tiles_fit_the_matrices() -> None:
    assert MmaTilings(LLAMA, H200).tile_ms == (16,)
    assert MmaTilings(replace_m(100), H200).tile_ms == (16, 32, 64, 128)
    assert MmaTilings(replace_m(4096), H200).tile_ms == (64, 128, 256)
    assert MmaTilings(replace_m(100_000), H200).tile_ms == (256,)
    narrow = MmaTilings(ffn_pair(m=16, d_in=40, d_hidden=33, d_out=1), H200)
    assert (narrow.tile_ns(0), narrow.tile_ns(1), narrow.tile_ks) == ((32, 64), (32,), (32, 64))


def replace_m(m: int) -> Workload:
    return replace(LLAMA, ops=tuple(replace(op, m=m) for op in LLAMA.tile_ops))


@pytest.mark.slow
@pytest.mark.parametrize(
    "gpu", soak_unless(lambda _, gpu: gpu.id == "a100", CATALOGUE.values()), ids=lambda gpu: gpu.id
)
def test_every_gpu_of_the_catalogue_has_a_space_of_provable_plans(gpu: Gpu) -> None:
    for workload in (LLAMA, replace_m(512), chain_of_three(100, (64, 64, 96, 64))):
        for schedule in space_of(workload, gpu).sample(random.Random(0), 5):
            (plan,) = plans_for(workload, gpu, Candidate(plan_kind=PlanKind.FUSED, schedule=schedule))
            num_tiles = sum(rows * cols for rows, cols in plan.graph.grids.values())
            is_whole = schedule.ordering.split_tiles is SplitTiles.ALL
            assert num_tiles <= plan.plan.num_tasks <= plan.graph.num_tasks
            assert plan.plan.num_tasks == plan.graph.num_tasks or not is_whole


# In CI, test_small_pairs.py has the order of splits.
@pytest.mark.soak
def test_a_tail_is_offered_to_be_split_where_tiles_fill_more_than_a_wave() -> None:
    space = space_of(replace_m(512), H200)
    tails = [tiling for tiling in space.tilings if space.split_tiles(tiling)[0] is SplitTiles.TAIL]
    assert len(tails) > 100
    for tiling in tails[::40]:
        orderings = space.orderings(tiling)
        drawn = [orderings[orderings.draw(random.Random(seed))] for seed in range(40)]
        assert sum(ordering.split_tiles is SplitTiles.TAIL for ordering in drawn) > 20
        assert all(space.is_legal(Schedule.of(tiling=tiling, ordering=ordering)) for ordering in drawn)
    one = next(tiling for tiling in tails if 1 in tiling.split_k)
    some = Schedule.of(tiling=one, ordering=plain(split_tiles=SplitTiles.TAIL))
    near = space.neighbours(some)
    assert some.but(ordering=plain()) in near
    whole = replace(one, split_k=())
    assert any(other.tiling == whole and other.ordering == plain() for other in near)
    again = space.neighbours(Schedule.of(tiling=whole, ordering=plain()))
    assert any(other.tiling.split_k and other.ordering.split_tiles is SplitTiles.TAIL for other in again)


def test_from_scattered_sums_one_move_leads_back_to_whole_tiles() -> None:
    space = Space(replace_m(192), H200)
    guesses = part_guesses(space.workload, space.gpu, space.is_legal)
    split_once = [one for one in guesses if sorted(one.tiling.split_k)[:-1] == [1]]
    assert {one.ordering.split_tiles for one in split_once} == {SplitTiles.ALL, SplitTiles.TAILS}
    for one in split_once:
        whole = replace(one.tiling, split_k=(), part_sums=PartSums.LAST)
        back = one.but(tiling=whole, ordering=replace(one.ordering, split_tiles=SplitTiles.ALL))
        assert back in space.neighbours(one), str(one)


# In CI, other tests iterate.
@pytest.mark.soak
def test_iteration_is_lazy() -> None:
    space = space_of(replace_m(1024), H200)
    assert len(list(islice(space, 100))) == 100


def test_a_gpu_before_ampere_has_no_space() -> None:
    with pytest.raises(IllegalSchedule, match=r"needs? 8\.0"):
        Space(LLAMA, replace(H200, compute_capability=(7, 0)))
