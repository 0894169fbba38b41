"""Proves a plan from its words: coverage, resources, liveness, safety; each refusal has a witness.

Only this module makes a `VerifiedPlan`, and neither a launch nor the simulator accepts another type.
"""

from __future__ import annotations

import hashlib
from dataclasses import InitVar, dataclass, field, replace

import numpy as np

from tuner.core.plan.graph.tile_graph import TaskGraph, TileGraph
from tuner.core.plan.table.words import Plan, Words
from tuner.core.plan.two_streams import joined
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import Resources
from tuner.core.proof.box_coverage import check_boxes
from tuner.core.proof.capacity import check_capacity
from tuner.core.proof.liveness import check_epochs, check_liveness, task_name
from tuner.core.proof.parts_at_once import check_parts_at_once, check_shares, waits_for_parts
from tuner.core.proof.run_time import check_run_time
from tuner.core.proof.safety import check_safety
from tuner.core.schedule.codec import Frozen
from tuner.errors import CoverageError, LivenessError

_TOKEN = object()


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifiedPlan:
    """A plan that covers its tile graph, cannot race, cannot deadlock, and fits the GPU. Made only by `verify`."""

    #: The plan as read back from its words.
    plan: Plan
    graph: TileGraph
    #: Resources of one CTA: estimated at first, later as reported by the compiler.
    resources: Resources
    gpu: Gpu
    token: InitVar[object]
    #: Whether it is one of two launches that share their signals; the other one posts what this one waits for, if
    #: anything.
    is_paired: bool = False
    #: Digest of the proven content: `proof_digest`.
    digest: str = field(init=False)

    def __post_init__(self, token: object) -> None:
        if token is not _TOKEN:
            raise TypeError("only tuner.core.proof.verify makes a VerifiedPlan: call verify()")
        object.__setattr__(self, "digest", proof_digest(self))

    @property
    def words(self) -> Words:
        """The plan's binary form, read-only."""
        return self.plan.words


def proof_digest(verified: VerifiedPlan) -> str:
    """sha256, hex, of the proven content in its current state: the words, what they were checked against, and the
    GPU."""
    graph = verified.graph
    facts = (
        graph.workload.digest,
        Frozen(graph.tiling),
        graph.op_indices,
        verified.resources,
        verified.gpu,
        verified.is_paired,
        *graph.tiling.of_kinds,
    )
    return hashlib.sha256(verified.plan.table + repr(facts).encode()).hexdigest()


def verify(plan: Plan, graph: TileGraph, resources: Resources, gpu: Gpu) -> VerifiedPlan:
    """Proves the plan's words against the tile graph and the GPU. The words also define which k-steps a part takes.

    Raises:
        WordError: the words are not a plan.
        CoverageError: a tile or a part is never computed, computed more than once, or outside its grid. Or the parts of
            a tile disagree on the post of the last one, or on their slot. Or a share of a tile is
            added by no part.
        ResourceError: the grid, the registers, the shared memory, the stages held back or the slots exceed what is
            available.
        LivenessError: a wait never ends.
        SafetyError: a read can come before its write.
    """
    judged = Plan.from_words(plan.words)
    graph = graph.with_parts(strided=judged.strided_parts).with_in_band(judged.in_band_ops)
    check_coverage(judged, graph)
    if waits := waits_for_parts(judged, graph):
        check_shares(judged, graph)
    check_run_time(judged, graph)
    check_capacity(judged, graph, resources, gpu)
    check_epochs(judged, graph)
    if waits:
        check_parts_at_once(judged, graph)
    else:
        check_liveness(judged, graph)
    check_safety(judged, graph)
    return VerifiedPlan(plan=judged, graph=graph, resources=resources, gpu=gpu, token=_TOKEN)


def verify_paired_launches(
    first: Plan, second: Plan, graph: TileGraph, resources: Resources, gpu: Gpu
) -> tuple[VerifiedPlan, VerifiedPlan]:
    """Proves two launches that share their signals, as one protocol; the second starts when the first has.

    Neither needs all its CTAs resident at once: those of the first do not wait, and all of them have started before any
    of the second, so every post comes eventually.

    Raises:
        PlanError: see `verify`, for both launches together; or there are not two ops, the first launch waits, or the
            second posts.
    """
    if len(graph.op_indices) != 2:
        names = ", ".join(graph.name_of(op) for op in graph.op_indices)
        right = f"two streams run two ops, one each; this graph has {len(graph.op_indices)} ({names})"
        raise CoverageError("the launches are not those of two ops", right)
    launches = Plan.from_words(first.words), Plan.from_words(second.words)
    both = joined(*launches)
    graph = graph.with_parts(strided=both.strided_parts).with_in_band(both.in_band_ops)
    check_coverage(both, graph)
    check_run_time(both, graph)
    waiting = np.flatnonzero(both.tasks[: launches[0].num_tasks, 4] > both.tasks[: launches[0].num_tasks, 3])
    if waiting.size:
        who = task_name(both, graph, int(waiting[0]))
        raise LivenessError("the first launch waits", f"{who}: the second one, which would post, starts after it")
    posting = np.flatnonzero(launches[1].tasks[:, 5] >= 0)
    if posting.size:
        who = task_name(both, graph, launches[0].num_tasks + int(posting[0]))
        raise LivenessError("the second launch posts", f"{who}: its own CTAs need not be resident at once")
    if waits_for_parts(both, graph):
        raise LivenessError(
            "parts wait for each other", "a launch that runs next to another need not have all of its CTAs resident"
        )
    for launch in launches:
        check_capacity(launch, graph, resources, gpu, is_paired=True)
    check_epochs(both, graph)
    check_liveness(both, graph)
    check_safety(both, graph)
    graphs = (replace(graph, op_indices=(op,)) for op in graph.op_indices)
    one, other = (
        VerifiedPlan(plan=launch, graph=own, resources=resources, gpu=gpu, token=_TOKEN, is_paired=True)
        for launch, own in zip(launches, graphs, strict=True)
    )
    check_coverage(one.plan, one.graph)
    check_coverage(other.plan, other.graph)
    return one, other


def recheck(verified: VerifiedPlan, resources: Resources) -> VerifiedPlan:
    """The same plan with the resources that the compiler reported.

    Raises:
        ResourceError: with these, the grid no longer fits.
    """
    check_capacity(verified.plan, verified.graph, resources, verified.gpu, is_paired=verified.is_paired)
    return replace(verified, resources=resources, token=_TOKEN)


def check_coverage(plan: Plan, graph: TaskGraph) -> None:
    """Checks that each part of each tile of the launch's ops occurs exactly once, where a whole tile counts as all of
    its parts; and that the tiles' boxes cover everything that is written, and everything that is read of it.

    Raises:
        CoverageError: this does not hold, with the tile and its duplicate tasks, a stray part, or boxes.
    """
    tasks = plan.tasks
    strange = np.flatnonzero(~np.isin(tasks[:, 0], graph.op_indices))
    if strange.size:
        task = int(strange[0])
        known = ", ".join(f"{op} ({graph.name_of(op)})" for op in graph.op_indices)
        raise CoverageError(
            "a task names an op that is not in this launch", (f"task {task} names op {tasks[task, 0]}, not {known}")
        )
    for op, (rows, cols) in graph.grids.items():
        mine = np.flatnonzero(tasks[:, 0] == op)
        row, col = tasks[mine, 1].astype(np.int64), tasks[mine, 2].astype(np.int64)
        outside = np.flatnonzero((row < 0) | (row >= rows) | (col < 0) | (col >= cols))
        if outside.size:
            who = task_name(plan, graph, int(mine[outside[0]]))
            raise CoverageError("a tile lies outside its grid", f"{who}, whose grid is {rows} x {cols}")
        most = graph.num_parts(op)
        part, num_parts = tasks[mine, 6].astype(np.int64), tasks[mine, 7].astype(np.int64)
        whole = (num_parts == 0) & (part == 0)
        strange = np.flatnonzero(~whole & ((num_parts < 2) | (num_parts > most) | (part >= num_parts)))
        if strange.size:
            task = int(mine[strange[0]])
            words = f"{task_name(plan, graph, task)}: its words say part {tasks[task, 6]} of {tasks[task, 7]}"
            legal = f"2 to {most}" if most > 2 else str(most)
            raise CoverageError("a part does not belong to its tile", f"{words}, not of {legal}")
        tile = row * cols + col
        split = np.ones(rows * cols, dtype=np.int64)
        np.maximum.at(split, tile, num_parts)
        count = np.bincount(tile * most + part, weights=~whole, minlength=rows * cols * most)
        count += np.repeat(np.bincount(tile, weights=whole, minlength=rows * cols), most)
        is_needed = (np.arange(most) < split[:, None]).ravel()
        name = graph.name_of(op)
        for wrong, problem in ((is_needed & (count == 0), "a tile is missing"), (count > 1, "a tile occurs twice")):
            if wrong.any():
                first, missing = divmod(int(np.flatnonzero(wrong)[0]), most)
                doubles = mine[(tile == first) & (whole | (part == missing))].tolist()
                how = f"tasks {' and '.join(map(str, doubles))} compute it" if doubles else "no task computes it"
                which = f" part {missing} of {split[first]}" if split[first] > 1 else ""
                raise CoverageError(problem, f"{name} tile {first // cols},{first % cols}{which}: {how}")
    check_boxes(graph)
    _check_parts_agree(plan, graph, 7, "is one of")
    _check_part_steps(plan, graph)
    _check_parts_agree(plan, graph, 5, "posts to signal")
    _check_slots(plan, graph)


def _check_parts_agree(plan: Plan, graph: TaskGraph, column: int, verb: str) -> None:
    """Checks that all parts of a tile agree on a word, such as the signal or the slot, whichever part finishes last."""
    in_parts = plan.tasks[:, 7] > 0
    other = np.flatnonzero(in_parts & (plan.tasks[:, column] != plan.tasks[plan.leader, column]))
    if other.size:
        task, leader = int(other[0]), int(plan.leader[other[0]])
        what = [f"{task_name(plan, graph, one)} {verb} {plan.tasks[one, column]}" for one in (leader, task)]
        raise CoverageError("the parts of a tile disagree", ", ".join(what))


def _check_part_steps(plan: Plan, graph: TaskGraph) -> None:
    """Checks that the parts of each split tile cover each of its k-steps once, and each part has at least one."""
    in_parts = np.flatnonzero(plan.tasks[:, 7] > 0)
    if not in_parts.size:
        return
    begin, stride, count = graph.steps_of(plan.tasks[in_parts]).T
    all_steps = graph.all_steps[plan.tasks[in_parts, 0]]
    strange = np.flatnonzero((count == 0) | (begin + (count - 1) * stride >= all_steps))
    if strange.size:
        i = int(strange[0])
        who, stop = task_name(plan, graph, int(in_parts[i])), begin[i] + count[i] * stride[i]
        steps = f"{count[i]} k-steps from {begin[i]} to {stop}" if count[i] else "no k-step"
        raise CoverageError("a part has no k-steps, or ones outside its tile", f"{who}: {steps} of {all_steps[i]}")
    tiles, tile_of = np.unique(plan.leader[in_parts], return_inverse=True)
    first_of = np.cumsum(graph.all_steps[plan.tasks[tiles, 0]])
    first_of = np.concatenate(([0], first_of))
    number = np.arange(count.sum(), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    taken = np.repeat(first_of[tile_of.reshape(-1)] + begin, count) + number * np.repeat(stride, count)
    times = np.bincount(taken, minlength=first_of[-1])
    wrong = np.flatnonzero(times != 1)
    if wrong.size:
        at = int(np.searchsorted(first_of, wrong[0], side="right")) - 1
        op, row, col = plan.tasks[tiles[at], :3].tolist()
        who, step = f"{graph.name_of(op)} tile {row},{col}", wrong[0] - first_of[at]
        how = f"{times[wrong[0]]} of its parts have" if times[wrong[0]] else "none of its parts has"
        raise CoverageError("the parts of a tile do not make up the tile", f"{who}: {how} k-step {step}")


def _check_slots(plan: Plan, graph: TaskGraph) -> None:
    """Checks that the parts of each split tile use an existing slot that no other tile uses. Otherwise, sums would be
    added to another tile's sums, and parts counted among that tile's parts."""
    _check_parts_agree(plan, graph, 8, "stores its sums in slot")
    tiles = np.flatnonzero((plan.tasks[:, 7] > 0) & (plan.leader == np.arange(plan.num_tasks)))
    slots = plan.tasks[tiles, 8]
    outside = np.flatnonzero((slots < 0) | (slots >= plan.num_split_tiles))
    if outside.size:
        who, slot = task_name(plan, graph, int(tiles[outside[0]])), int(slots[outside[0]])
        raise CoverageError("a slot does not exist", f"{who} stores its sums in slot {slot} of {plan.num_split_tiles}")
    by_slot = np.argsort(slots, kind="stable")
    again = np.flatnonzero(np.diff(slots[by_slot]) == 0)
    if again.size:
        first, second = (int(tiles[by_slot[again[0] + step]]) for step in (0, 1))
        names = [task_name(plan, graph, one) for one in (first, second)]
        raise CoverageError("two tiles use the same slot", f"{' and '.join(names)}: slot {plan.tasks[first, 8]}")
