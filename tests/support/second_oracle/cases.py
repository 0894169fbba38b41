"""Small plans of every engine, and the prover's verdict on them.

This is the only module of the second oracle that uses the project's types: it makes plans, and calls `verify`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.support.cases import H200, adds, chain_of_three, decoder_block, fork, gemms, simt, tiling, wgmma
from tests.support.chain_graphs import CHAIN_GRAPHS
from tests.support.second_oracle import table
from tests.support.second_oracle.judge import Verdict, judge, judge_pair
from tests.support.second_oracle.mutators import MUTATORS, OF_EPILOGUES
from tests.support.second_oracle.table import Kernel, Op
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.boxes import Box
from tuner.core.plan.graph.lowering import lower
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify, verify_paired_launches
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.tiling import Engine, PartSums, Tiling
from tuner.errors import CoverageError, LivenessError, PlanError, ResourceError, SafetyError, WordError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

REASONS = {
    WordError: "words",
    CoverageError: "coverage",
    ResourceError: "capacity",
    SafetyError: "safety",
    LivenessError: "liveness",
}
#: At most nine tasks each, fewer if a cluster has two CTAs, so that every state can be visited.
GRAPHS: tuple[tuple[Workload, Tiling], ...] = (
    (ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32))),
    (ffn_pair(m=16, d_in=32, d_hidden=96, d_out=64), tiling((16, 32), (16, 32), num_stages=3)),
    (ffn_pair(m=48, d_in=32, d_hidden=32, d_out=32), tiling((16, 32), (32, 32))),
    (ffn_pair(m=32, d_in=32, d_hidden=64, d_out=32), tiling((32, 32), (16, 32))),
    (ffn_pair(m=16, d_in=32, d_hidden=160, d_out=32), tiling((16, 48), (16, 32))),
    (chain_of_three(16, (32, 64, 64, 32)), tiling((16, 32), (16, 32), (16, 32))),
    (fork(16, (32, 64, 32, 32)), tiling((16, 32), (16, 32), (16, 32))),
    (independent_pair((32, 32, 32), (16, 64, 32)), tiling((16, 32), (16, 32))),
    (ffn_pair(m=16, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32), split=(1, 2))),
    (ffn_pair(m=16, d_in=32, d_hidden=96, d_out=32), tiling((16, 48), (16, 32), split=(1, 3))),
    (ffn_pair(m=16, d_in=64, d_hidden=64, d_out=32), tiling((16, 32), (16, 32), split=(2, 2))),
    (ffn_pair(m=16, d_in=32, d_hidden=144, d_out=32), tiling((16, 48), (16, 32), split=(1, 2))),
    (ffn_pair(m=2, d_in=64, d_hidden=64, d_out=64), simt((1, 32, 32))),
    (ffn_pair(m=16, d_in=64, d_hidden=128, d_out=128), wgmma((16, 64, 64))),
    (ffn_pair(m=16, d_in=64, d_hidden=256, d_out=64), wgmma((16, 64, 64), num_stages=6, split_k=(1, 2))),
    (ffn_pair(m=16, d_in=64, d_hidden=256, d_out=128), wgmma((16, 128, 64), cluster_n=2)),
    (ffn_pair(m=64, d_in=64, d_hidden=64, d_out=64), wgmma((32, 64, 64), cluster_m=2)),
    (ffn_pair(m=16, d_in=128, d_hidden=128, d_out=64), wgmma((16, 64, 64), cluster_k=2)),
    (ffn_pair(m=8, d_in=64, d_hidden=128, d_out=128), wgmma((16, 64, 64), in_band=True)),
    (ffn_pair(m=8, d_in=64, d_hidden=256, d_out=64), wgmma((16, 64, 64), split_k=(1, 2), in_band=True)),
)
#: Three and four ops that add and normalize what earlier ones write, for every engine.
CHAINS: tuple[tuple[Workload, Tiling], ...] = (
    *((graph.workload, graph.tiling) for graph in CHAIN_GRAPHS),
    (decoder_block(2, 32, 32, 32), simt(*[(1, 32, 32)] * 4)),
    (decoder_block(16, 128, 64, 64, heads=64), wgmma(*[(16, 64, 64)] * 4)),
    (decoder_block(16, 128, 64, 64, heads=64), wgmma(*[(16, 64, 64)] * 4, split_k=(1, 2, 1, 2))),
    (decoder_block(8, 128, 64, 64, heads=64), wgmma(*[(16, 64, 64)] * 4, in_band=True)),
    (
        gemms(16, ("a", "x", 128, 64, {}), ("b", "x", 128, 64, adds("a")), ("c", "b", 64, 128, {"norm": "b"})),
        wgmma(*[(16, 128, 64)] * 3, cluster_n=2),
    ),
    (
        gemms(16, ("a", "x", 64, 128, {}), ("b", "x", 64, 128, adds("a")), ("c", "b", 64, 64, {"norm": "a"})),
        wgmma(*[(16, 64, 64)] * 3, cluster_k=2),
    ),
)
#: Each part of a tile adds up a share of it. Two numbers of parts, next to whole tiles and before a third op.
SCATTERED: tuple[tuple[Workload, Tiling], ...] = tuple(
    (workload, replace(chosen, part_sums=PartSums.SCATTERED))
    for workload, chosen in (
        (ffn_pair(m=16, d_in=64, d_hidden=256, d_out=128), wgmma((16, 64, 64), num_stages=3, split_k=(1, 2))),
        (ffn_pair(m=16, d_in=128, d_hidden=128, d_out=128), wgmma((16, 64, 64), split_k=(2, 2))),
        (ffn_pair(m=32, d_in=64, d_hidden=192, d_out=64), wgmma((32, 64, 64), split_k=(1, 3))),
        (ffn_pair(m=16, d_in=128, d_hidden=192, d_out=64), wgmma((16, 96, 64), split_k=(2, 3))),
        (ffn_pair(m=32, d_in=128, d_hidden=64, d_out=64), wgmma((16, 64, 64), split_k=(2, 1))),
        (chain_of_three(16, (64, 64, 128, 64)), wgmma(*[(16, 64, 64)] * 3, split_k=(1, 1, 2))),
        (decoder_block(16, 128, 64, 64, heads=64), wgmma(*[(16, 64, 64)] * 4, split_k=(1, 2, 1, 2), swap_ab=True)),
    )
)
Pool = Sequence[tuple[Workload, Tiling]]
Pools = Sequence[Pool]
PAIRED = tuple(case for case in (*GRAPHS, *SCATTERED) if len(case[0].tile_ops) == 2 and case[1].cluster_size == 1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The words of one launch, or of two that share their signals."""

    graph: TileGraph
    #: CTAs, or clusters, that the card holds at once.
    resident: int
    raws: tuple[bytes, ...]
    #: The mutation of the words, or "none".
    mutation: str = "none"
    #: Whether only the tiles of an op's last wave are split.
    splits_tails: bool = False

    @property
    def is_chain(self) -> bool:
        """Whether the launch has three or four ops, with a residual or a norm of one of them."""
        return len(self.graph.op_indices) > 2 and bool(self.graph.late_edges)

    @property
    def kernel(self) -> Kernel:
        """The kernel as the oracle describes it."""
        workload, chosen = self.graph.workload, self.graph.tiling
        return Kernel(
            ops=ops_of(workload, chosen, self.graph.op_indices),
            launched=self.graph.op_indices,
            is_wgmma=chosen.engine is Engine.WGMMA,
            stages_ahead=chosen.num_stages - (chosen.engine is not Engine.WGMMA),
            cluster=(chosen.cluster_m, chosen.cluster_n, chosen.cluster_k),
            resident=self.resident,
            has_readers=chosen.in_band,
            scatters=chosen.part_sums is PartSums.SCATTERED,
        )

    def verdict(self) -> Verdict:
        """The oracle's verdict."""
        if len(self.raws) == 2:
            return judge_pair(self.raws[0], self.raws[1], self.kernel)
        return judge(self.raws[0], self.kernel)

    def refusal(self) -> PlanError | None:
        """The prover's refusal."""
        size = self.graph.tiling.cluster_size
        gpu = replace(H200, num_sms=self.resident * size)
        # One CTA with these resources fits on an SM.
        resources = Resources(num_threads=128, smem_bytes=150_000, registers_per_thread=64, cluster_size=size)
        # Only the words are judged.
        plans = [cast(Plan, SimpleNamespace(words=np.frombuffer(raw, dtype=np.int32))) for raw in self.raws]
        try:
            if len(plans) == 2:
                verify_paired_launches(plans[0], plans[1], self.graph, resources, gpu)
            else:
                verify(plans[0], self.graph, resources, gpu)
        except PlanError as error:
            return error
        return None


@lru_cache(maxsize=256)
def ops_of(workload: Workload, chosen: Tiling, launched: tuple[int, ...]) -> tuple[Op, ...]:
    """The ops of a kernel, with the boxes of each CTA's tile; boxes read in steps do not depend on a CTA's column."""
    written = {workload.tile_ops[op].name for op in launched}
    found = []
    for number, (op, tile, mine) in enumerate(zip(workload.tile_ops, chosen.tiles, chosen.cta_tiles, strict=True)):
        space, grid = lower(op, mine), (-(-op.m // tile.m), -(-op.n // tile.n))
        writes: dict[tuple[int, int, int], list[table.Box]] = {}
        reads: dict[tuple[int, int, int], list[list[table.Box]]] = {}
        late: dict[tuple[int, int, int], list[table.Box]] = {}
        for row, col, down, right in np.ndindex(*grid, chosen.cluster_m, chosen.cluster_n):
            at = (row * chosen.cluster_m + down, col * chosen.cluster_n + right)
            own, is_there = (row, col, down * chosen.cluster_n + right), at[0] < space.grid[0] and at[1] < space.grid[1]
            writes[own] = [_box(box, at) for box in space.writes] if is_there else []
            early = [read.box for read in space.reads if not read.is_late]
            # A CTA beyond the columns still requests its share of the rows for its neighbours.
            has_rows, inside = at[0] < space.grid[0], (at[0], min(at[1], space.grid[1] - 1))
            reads[own] = [[_box(b, inside, s) for b in early] if has_rows else [] for s in range(space.num_steps)]
            boxes = (read.box for read in space.reads if read.is_late and read.box.tensor in written)
            late[own] = [_box(box, at) for box in boxes] if is_there else []
        sums_bytes = 4 * tile.m * tile.n * (1 + op.gated)
        found.append(Op(grid, space.num_steps, chosen.num_parts(number), sums_bytes, writes, reads, late))
    return tuple(found)


def _box(box: Box, tile: tuple[int, int], step: int = 0) -> table.Box:
    return table.Box(box.tensor, tuple(range(side.start, side.stop) for side in box.at(tile, step)))


def random_case(rng: random.Random, pools: Pools = (GRAPHS, CHAINS, SCATTERED), paired: Pool = PAIRED) -> Case:
    """A plan from one of `pools`, or two launches from `paired`, usually with up to three changes to its words."""
    is_paired = rng.random() < 0.12
    workload, chosen = rng.choice(paired if is_paired else rng.choice(pools))
    alone = not is_paired and rng.random() < 0.08
    graph = tile_graph(workload, chosen, (rng.randrange(len(workload.tile_ops)),) if alone else None)
    resident, order = rng.randint(1, 3), random_ordering(graph, rng, is_paired=is_paired)
    gpu = replace(H200, num_sms=resident * chosen.cluster_size)
    plans = make_paired_plans(graph, order, gpu) if is_paired else (make_plan(graph, order, gpu),)
    splits_tails = order.split_tiles is SplitTiles.TAILS and max(chosen.split_k, default=1) > 1
    raws = tuple(plan.words.tobytes() for plan in plans)
    case = Case(graph=graph, resident=resident, raws=raws, splits_tails=splits_tails)
    return case if rng.random() < 0.1 else mutated(case, rng)


def mutated(case: Case, rng: random.Random) -> Case:
    """The case with other words, or on a smaller GPU."""
    if rng.random() < 0.03:
        return replace(case, resident=max(1, case.resident - 1), mutation="a smaller card")
    raws, which = [*case.raws], rng.randrange(len(case.raws))
    words = list(struct.unpack(f"={len(raws[which]) // 4}i", raws[which]))
    mutation = rng.choice(tuple(MUTATORS))
    if case.is_chain and rng.random() < 0.35:
        mutation = rng.choice(tuple(OF_EPILOGUES))
    changed = {**MUTATORS, **OF_EPILOGUES}[mutation](words, rng)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        again = rng.choice(("a word of a task", "a word of a wait", "tasks swapped", "waits of a task changed"))
        if is_sound(changed):
            changed = MUTATORS[again](changed, rng)
    raws[which] = struct.pack(f"={len(changed)}i", *map(wrapped, changed))
    return replace(case, raws=tuple(raws), mutation="none" if tuple(raws) == case.raws else mutation)


def wrapped(word: int) -> int:
    """Wraps a word to 32 bits, because repeated changes may exceed the range."""
    return (word + 2**31) % 2**32 - 2**31


def is_sound(words: list[int]) -> bool:
    """Whether the sections are where the header says, so that a mutator finds them."""
    num_queue_words = words[4] + 1 if words[5] == 0 else 0
    ends = 16 + num_queue_words <= words[7] and words[7] + 8 * words[2] == words[8]
    return words[2] > 0 and words[9] >= 0 and ends and words[8] + 8 * words[9] == len(words)


def random_ordering(graph: TileGraph, rng: random.Random, *, is_paired: bool = False) -> Ordering:
    """Values of every axis, including illegal combinations from which a plan can be built."""
    is_dependent = bool(graph.edges)
    merges = [Interleave(), Interleave(kind=InterleaveKind.LONGEST_FIRST)]
    if is_dependent:
        merges += [Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in (1, 2)]
    granularity = rng.choice(tuple(Granularity))
    assignment: Any = rng.choice((Assignment.STATIC, Assignment.SHARES) if is_paired else ASSIGNMENTS)
    split_tiles = rng.choice(tuple(SplitTiles))
    split_order = rng.choice(tuple(SplitOrder))
    if scatters := graph.tiling.part_sums is PartSums.SCATTERED:  # as in legal plans; mutated words give other orders
        assignment = Assignment.STATIC
        split_tiles = rng.choice((SplitTiles.ALL, SplitTiles.TAIL, SplitTiles.TAILS))
    if split_tiles is SplitTiles.STREAM:
        assignment, split_order = Assignment.STATIC, SplitOrder.CONTIGUOUS
    return Ordering(
        rasters=tuple(Raster(kind=rng.choice((RasterKind.ROW, RasterKind.COLUMN))) for _ in graph.workload.tile_ops),
        interleave=rng.choice(merges),
        granularity=granularity,
        sync_width=1 if granularity in (Granularity.ROW, Granularity.TILE, Granularity.BARRIER) else 2,
        assignment=assignment,
        partition=rng.choice((0, 0, 4)) if assignment is Assignment.STATIC and not scatters else 0,
        wait_position=rng.choice(tuple(WaitPosition)),
        run_ahead=rng.choice((0, 50, 100)),
        split_order=split_order,
        split_tiles=split_tiles,
    )
