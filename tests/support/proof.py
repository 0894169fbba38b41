"""Random small plans and their mutants, judged by `verify` and by the exhaustive walk of `oracle`.

The expected verdict is always the oracle's, because some mutations are harmless and must be accepted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.support import mutants, oracle
from tests.support.cases import (
    INTERLEAVES_BY_NAME,
    SYNCS_BY_NAME,
    chain_of_three,
    fork,
    small_gpu,
    tiling,
)
from tests.support.chain_graphs import CHAIN_GRAPHS
from tests.support.epilogue_mutants import OF_EPILOGUES
from tuner.core.legal.ordering_rules import interleave_problem, position_problem, raster_problem, sync_problem
from tuner.core.legal.split_rules import split_order_problem
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.interleaves import block_shapes, merge_blocks
from tuner.core.plan.table.header import STATIC, TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.problem.resources import Resources
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import ASSIGNMENTS, Assignment, Ordering, SplitOrder, SplitTiles, WaitPosition
from tuner.core.space.ordering_values import INTERLEAVES, RASTERS, SYNCS
from tuner.errors import CoverageError, LivenessError, PlanError, ResourceError, SafetyError, WordError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Resources of which one CTA fits on an SM of an H200.
ROOMY = Resources(num_threads=128, smem_bytes=150_000, registers_per_thread=64)
REASONS = {
    WordError: "words",
    CoverageError: "coverage",
    SafetyError: "safety",
    LivenessError: "liveness",
    ResourceError: "residency",
}
#: At most nine tasks each, so that every state can be visited.
GRAPHS = (
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32))),
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), replace(tiling((16, 32), (16, 32)), in_band=True)),
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=96, d_out=32), tiling((16, 32), (16, 32))),
    tile_graph(ffn_pair(m=48, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (16, 32))),
    tile_graph(ffn_pair(m=48, d_in=32, d_hidden=32, d_out=64), tiling((16, 32), (32, 32))),
    tile_graph(ffn_pair(m=48, d_in=32, d_hidden=64, d_out=32), tiling((32, 32), (16, 32))),
    tile_graph(chain_of_three(32, (32, 32, 64, 32)), tiling((16, 32), (16, 32), (32, 32))),
    tile_graph(fork(32, (32, 32, 32, 32)), tiling((16, 32), (32, 32), (16, 32))),
    tile_graph(independent_pair((32, 64, 32), (32, 32, 32)), tiling((16, 32), (16, 32))),
)
#: The same with tiles in parts.
SPLIT_GRAPHS = (
    tile_graph(ffn_pair(m=16, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32), split=(1, 2))),
    tile_graph(ffn_pair(m=16, d_in=32, d_hidden=96, d_out=32), tiling((16, 48), (16, 32), split=(1, 3))),
    tile_graph(ffn_pair(m=16, d_in=32, d_hidden=100, d_out=32), tiling((16, 32), (16, 32), split=(1, 3))),
    tile_graph(ffn_pair(m=16, d_in=32, d_hidden=144, d_out=32), tiling((16, 32), (16, 32), split=(1, 2))),
    tile_graph(ffn_pair(m=16, d_in=32, d_hidden=160, d_out=32), tiling((16, 48), (16, 32), split=(1, 3))),
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=96, d_out=32), tiling((16, 64), (16, 32), split=(1, 2))),
    tile_graph(ffn_pair(m=32, d_in=64, d_hidden=32, d_out=32), tiling((16, 32), (16, 32), split=(2, 1))),
    tile_graph(ffn_pair(m=16, d_in=50, d_hidden=64, d_out=32), tiling((16, 32), (16, 32), split=(2, 2))),
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (32, 32), split=(1, 2))),
    tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=32), tiling((32, 32), (16, 32), split=(1, 2))),
    tile_graph(chain_of_three(16, (32, 64, 32, 32)), tiling((16, 32), (16, 32), (16, 32), split=(1, 2, 1))),
    tile_graph(fork(16, (32, 64, 32, 32)), tiling((16, 32), (16, 32), (16, 32), split=(1, 2, 1))),
    tile_graph(independent_pair((32, 32, 64), (16, 32, 96)), tiling((16, 32), (16, 32), split=(2, 3))),
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One plan, and the verdicts of both judges."""

    #: The mutation, or "none".
    mutation: str
    #: The oracle's verdict: any of words, coverage, safety, liveness, residency.
    faults: frozenset[str]
    #: The verdict of `verify`: one of these, or None if it accepts.
    refusal: str | None
    #: Whether there are three ops or four, and a residual or a norm of one of them.
    is_chain: bool

    @property
    def verdict(self) -> str:
        """The one-word verdict for the counts."""
        return self.refusal or "accepted"

    @property
    def problem(self) -> str | None:
        """How the judges disagree."""
        if self.refusal is None:
            return "false accept" if self.faults else None
        if not self.faults:
            return "false reject"
        return None if self.refusal in self.faults else "wrong reason"


def judged_plans(
    seed: int, count: int, pools: Sequence[Sequence[TileGraph]] = (GRAPHS, SPLIT_GRAPHS, CHAIN_GRAPHS)
) -> Iterator[tuple[Judged, Plan, TileGraph, int]]:
    """`count` plans with their verdicts, graphs, and numbers of resident CTAs; each graph is drawn from one of
    `pools`."""
    rng = random.Random(seed)
    for _ in range(count):
        graph = rng.choice(rng.choice(pools))
        num_ctas = rng.randint(1, 3)
        plan = make_plan(graph, random_ordering(graph, rng), small_gpu(num_ctas))
        resident, mutation = num_ctas, "none"
        if rng.random() < 0.9:
            drawn = rng.choice((*MUTATIONS, *["grid too large"] * 2))
            if graph.late_edges and rng.random() < 0.35:
                drawn = rng.choice(tuple(OF_EPILOGUES))
            mutant, resident = mutated(plan, drawn, num_ctas, rng)
            if resident != num_ctas or mutant.words.tobytes() != plan.words.tobytes():
                plan, mutation = mutant, drawn
        faults = frozenset(oracle.faults(plan.words.tolist(), graph, resident))
        verdict = refusal(plan, graph, resident)
        judged = Judged(mutation=mutation, faults=faults, refusal=verdict, is_chain=bool(graph.late_edges))
        yield judged, plan, graph, resident


def refusal(plan: Plan, graph: TileGraph, resident: int) -> str | None:
    """The reason given by `verify` for a GPU that holds `resident` CTAs; None if it accepts."""
    try:
        verify(plan, graph, ROOMY, small_gpu(resident))
    except PlanError as error:
        return REASONS[type(error)] if error.witness else "a refusal without a witness"
    return None


def random_ordering(graph: TileGraph, rng: random.Random) -> Ordering:
    """A legal combination of values, offered or only legal; the assignment is drawn separately."""
    workload, tiles = graph.workload, graph.tiling.tiles
    known = (*INTERLEAVES, *INTERLEAVES_BY_NAME)
    interleave = rng.choice([value for value in known if interleave_problem(workload, tiles, value) is None])
    blocks = merge_blocks(workload, tiles, graph.op_indices, interleave)
    syncs = (*SYNCS, *SYNCS_BY_NAME)
    sync = rng.choice([value for value in syncs if sync_problem(graph, interleave, *value) is None])
    split_tiles, assignment = rng.choice(tuple(SplitTiles)), rng.choice(ASSIGNMENTS)
    orders = [value for value in SplitOrder if split_order_problem(graph, value) is None]
    order = rng.choice(orders)
    if split_tiles is SplitTiles.STREAM:
        assignment, order = Assignment.STATIC, SplitOrder.CONTIGUOUS
    parted = graph.with_parts(strided=order is SplitOrder.STRIDED)
    positions = [value for value in WaitPosition if position_problem(parted, *sync, value) is None]
    return Ordering(
        rasters=tuple(
            rng.choice([one for one in RASTERS if raster_problem(one, block_shapes(blocks, op), "") is None])
            for op in graph.op_indices
        ),
        interleave=interleave,
        granularity=sync[0],
        sync_width=sync[1],
        assignment=assignment,
        partition=rng.choice((0, 0, 4, 6)),
        wait_position=rng.choice(positions),
        split_order=order,
        split_tiles=split_tiles,
    )


def mutated(plan: Plan, mutation: str, resident: int, rng: random.Random) -> tuple[Plan, int]:
    """The plan after one mutation, and the number of resident CTAs."""
    if mutation == "grid too large":
        return plan, max(1, resident - rng.randint(1, 2))
    changed = MUTATIONS[mutation](plan, rng)
    # Half of the plans get recomputed posts per launch, because moved posts would already be refused for wrong counts.
    return (mutants.with_true_steps(changed) if rng.random() < 0.5 else changed), resident


def _waiting(plan: Plan, rng: random.Random) -> int:
    """The index of a task that waits or, if none does, of any task."""
    waiting = [task for task in range(plan.num_tasks) if plan.tasks[task, 4] > plan.tasks[task, 3]]
    return rng.choice(waiting or range(plan.num_tasks))


def _wait_removed(plan: Plan, rng: random.Random) -> Plan:
    task = _waiting(plan, rng)
    return mutants.edit(plan, task, 4, max(int(plan.tasks[task, 3]), int(plan.tasks[task, 4]) - 1))


def _wait_changed(column: int, step: int) -> Callable[[Plan, random.Random], Plan]:
    def change(plan: Plan, rng: random.Random) -> Plan:
        if not len(plan.waits):
            return plan
        some = np.flatnonzero(plan.waits[:, column] + step >= 0).tolist()
        wait = rng.choice(some or range(len(plan.waits)))
        return mutants.edit_wait(plan, wait, column, int(plan.waits[wait, column]) + step)

    return change


def _wait_narrowed(plan: Plan, rng: random.Random) -> Plan:
    wide = [wait for wait, (begin, end) in enumerate(plan.waits[:, :2].tolist()) if end - begin > 1]
    if not wide:
        return plan
    wait, column = rng.choice(wide), rng.choice((0, 1))
    return mutants.edit_wait(plan, wait, column, int(plan.waits[wait, column]) + (1, -1)[column])


def _reordered(plan: Plan, rng: random.Random) -> Plan:
    queue = rng.randrange(plan.queues.size - 1) if plan.assignment == STATIC else 0
    begin, end = plan.queues[queue : queue + 2].tolist() if plan.assignment == STATIC else (0, plan.num_tasks)
    return mutants.move(plan, rng.randrange(begin, end), queue, rng.randrange(end - begin)) if end > begin else plan


def _moved_to_another_queue(plan: Plan, rng: random.Random) -> Plan:
    queue = rng.randrange(max(1, plan.queues.size - 1))
    return mutants.move(plan, rng.randrange(plan.num_tasks), queue, rng.randrange(3))


def _overlapped(plan: Plan, rng: random.Random) -> Plan:
    task, other = rng.randrange(plan.num_tasks), rng.randrange(plan.num_tasks)
    for column in (1, 2):
        plan = mutants.edit(plan, task, column, int(plan.tasks[other, column]))
    return plan


def _post_moved(plan: Plan, rng: random.Random) -> Plan:
    return mutants.edit(plan, rng.randrange(plan.num_tasks), 5, rng.randint(-1, plan.num_signals - 1))


def _step_changed(plan: Plan, rng: random.Random) -> Plan:
    if not len(plan.waits):
        return plan
    wait = rng.randrange(len(plan.waits))
    return mutants.edit_wait(plan, wait, 3, int(plan.waits[wait, 3]) + rng.choice((-1, 1)))


def _waits_swapped(plan: Plan, rng: random.Random) -> Plan:
    task, other = _waiting(plan, rng), _waiting(plan, rng)
    for column in (3, 4):
        plan = mutants.edit(plan, task, column, int(plan.tasks[other, column]))
    return plan


def _part_changed(plan: Plan, rng: random.Random) -> Plan:
    task, column = rng.randrange(plan.num_tasks), rng.choice((6, 7))
    return mutants.edit(plan, task, column, int(plan.tasks[task, column]) + rng.choice((-1, 1)))


def _part_steps_changed(plan: Plan, rng: random.Random) -> Plan:
    """A part begins or ends elsewhere; half the time, the neighbouring part is adjusted."""
    task, step = rng.choice(np.flatnonzero(plan.tasks[:, 7]).tolist() or [0]), rng.choice((-1, 1))
    part, first, num_steps = plan.tasks[task, [6, 9, 10]].tolist()
    same = (plan.tasks[:, :3] == plan.tasks[task, :3]).all(axis=1)
    beside = np.flatnonzero(same & (plan.tasks[:, 6] == part - 1)).tolist()
    plan = mutants.edit(plan, task, 9, max(0, first + step))
    if rng.random() < 0.5:
        plan = mutants.edit(plan, task, 10, max(0, num_steps - step))
    for other in beside if rng.random() < 0.5 else ():
        plan = mutants.edit(plan, other, 10, max(0, int(plan.tasks[other, 10]) + step))
    return plan


def _part_steps_swapped(plan: Plan, rng: random.Random) -> Plan:
    """Two parts of a tile exchange their k-steps; half the time, also their waits."""
    task = rng.choice(np.flatnonzero(plan.tasks[:, 7]).tolist() or [0])
    same = np.flatnonzero((plan.tasks[:, :3] == plan.tasks[task, :3]).all(axis=1)).tolist()
    other, tasks = rng.choice(same), plan.tasks.copy()
    columns = [9, 10, *([3, 4] if rng.random() < 0.5 else [])]
    tasks[np.ix_([task, other], columns)] = tasks[np.ix_([other, task], columns)]
    return replace(plan, tasks=tasks)


def _slot_changed(plan: Plan, rng: random.Random) -> Plan:
    """One part, or the whole tile, uses another slot; or there is one slot fewer or more."""
    if rng.random() < 0.2:
        return replace(plan, num_split_tiles=max(0, plan.num_split_tiles + rng.choice((-1, 1))))
    task = rng.choice(np.flatnonzero(plan.tasks[:, 7]).tolist() or [0])
    slot = rng.randint(-1, plan.num_split_tiles)
    same = np.flatnonzero((plan.tasks[:, :3] == plan.tasks[task, :3]).all(axis=1)).tolist()
    for other in same if rng.random() < 0.5 else [task]:
        plan = mutants.edit(plan, other, 8, slot)
    return plan


def _made_whole(plan: Plan, rng: random.Random) -> Plan:
    """One part becomes the whole tile; half the time, the other parts are removed."""
    task = rng.choice(np.flatnonzero(plan.tasks[:, 7]).tolist() or [0])
    others = np.flatnonzero((plan.tasks[:, :3] == plan.tasks[task, :3]).all(axis=1))[::-1].tolist()
    plan = mutants.edit(mutants.edit(plan, task, 6, 0), task, 7, 0)
    if rng.random() < 0.5:
        for other in others:
            plan = mutants.drop(plan, other) if other != task else plan
    return plan


def _tile_post_moved(plan: Plan, rng: random.Random) -> Plan:
    """All parts of a tile post to another signal."""
    task, signal = rng.randrange(plan.num_tasks), rng.randint(-1, plan.num_signals - 1)
    for other in np.flatnonzero((plan.tasks[:, :3] == plan.tasks[task, :3]).all(axis=1)).tolist():
        plan = mutants.edit(plan, other, 5, signal)
    return plan


def _word_made_extreme(plan: Plan, rng: random.Random) -> Plan:
    """A word of a task or of a wait, or a count, is set far outside its range."""
    value = rng.choice((-(2**31), -(2**30), -1, 2**30, 2**31 - 1))
    kind = rng.choice(("task", "wait", "count")) if len(plan.waits) else rng.choice(("task", "count"))
    if kind == "task":
        return mutants.edit(plan, rng.randrange(plan.num_tasks), rng.choice((1, 2, 8)), value)
    if kind == "wait":
        return mutants.edit_wait(plan, rng.randrange(len(plan.waits)), rng.choice((2, 3, 4)), value)
    counts = ["held_stages", "num_split_tiles", *(["num_ctas"] if plan.assignment == TICKET else [])]
    return replace(plan, **{rng.choice(counts): value})  # type: ignore[arg-type]


def _band_changed(plan: Plan, rng: random.Random) -> Plan:
    """Toggles whether an op reads in band."""
    return replace(plan, in_band_ops=plan.in_band_ops ^ 1 << rng.randrange(4))


MUTATIONS: dict[str, Callable[[Plan, random.Random], Plan]] = {
    "wait removed": _wait_removed,
    "wait narrowed": _wait_narrowed,
    "threshold one lower": _wait_changed(2, -1),
    "threshold one higher": _wait_changed(2, 1),
    "queue reordered": _reordered,
    "task dealt elsewhere": _moved_to_another_queue,
    "task lost": lambda plan, rng: mutants.drop(plan, rng.randrange(plan.num_tasks)),
    "task doubled": lambda plan, rng: mutants.double(plan, rng.randrange(plan.num_tasks)),
    "region overlapped": _overlapped,
    "post moved": _post_moved,
    "tile's post moved": _tile_post_moved,
    "waits of another": _waits_swapped,
    "part changed": _part_changed,
    "part's k-steps changed": _part_steps_changed,
    "parts' k-steps swapped": _part_steps_swapped,
    "parts in the opposite order": lambda plan, rng: replace(plan, strided_parts=not plan.strided_parts),
    "part made whole": _made_whole,
    "slot changed": _slot_changed,
    "posts per launch changed": _step_changed,
    "read in band or not": _band_changed,
    "wait one k-step earlier": _wait_changed(4, -1),
    "wait one k-step later": _wait_changed(4, 1),
    "word made extreme": _word_made_extreme,
    "grid too large": lambda plan, rng: replace(plan),
    **OF_EPILOGUES,
}


def counts(judged: Iterator[Judged]) -> list[dict[str, str | int]]:
    """A row per mutation and a total: plans by verdict, harmless mutants, and disagreements by kind."""
    by_mutation: dict[str, Counter[str]] = {}
    for one in judged:
        for name in (one.mutation, "all"):
            counter = by_mutation.setdefault(name, Counter())
            counter.update(["plans", one.verdict])
            counter["harmless"] += one.mutation != "none" and not one.faults
            counter["chains"] += one.is_chain
            counter.update([one.problem] if one.problem else [])
    columns = (
        "plans",
        "chains",
        "accepted",
        *REASONS.values(),
        "harmless",
        "false accept",
        "false reject",
        "wrong reason",
    )
    return [
        {"mutation": name, **{column.replace(" ", "_"): counter[column] for column in columns}}
        for name, counter in sorted(by_mutation.items())
    ]
