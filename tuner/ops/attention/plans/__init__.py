"""Checks a plan of decode attention word by word, for every length that a launch may have.

What is proven: each span of each block of columns belongs to one task, so each position in a slot is written once. If a
launch assigns its tasks by the lengths, each task has a number. The C clusters take C numbers at a time, one each, so
each task belongs to one cluster. The CTAs of a cluster read each tile of a span once, and run the same tasks in the
same order. The number of arrivals at a slot is the same in each launch, whatever the lengths. So the CTA whose arrival
makes the counter a multiple of this number comes after all others of the launch, and it alone adds up their partial
sums. No task waits for another task. Only CTAs of a cluster wait for each other, and these run at the same time. So no
launch hangs, however few clusters fit on the card.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from tuner.core.plan.table.header import MOST_QUEUES
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.run_time import check_reach
from tuner.core.schedule.codec import Frozen
from tuner.errors import CoverageError, ResourceError, WordError
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import CLUSTERS, AttentionPlan, assign, num_attention_clusters
from tuner.ops.attention.schedule import BLOCK_COLUMNS, AttentionEngine, AttentionSchedule

#: A task has 24 bits for its span and 7 for its block.
_MOST_SPANS, _MOST_BLOCKS = 2**24 - 1, 2**7 - 1
#: The device counts tokens, tiles, tasks and slots in signed words of 32 bits.
_MOST_COUNT = 2**31 - 1
#: How far past the last existing box lanes may look up boxes of a paged cache; a tile has one or more boxes.
_TILES_BEYOND = 64


def plan_of(op: AttentionOp, schedule: AttentionSchedule, gpu: Gpu) -> AttentionPlan:
    """The proven plan of one attention's launch.

    Raises:
        IllegalSchedule: the warps cannot be split into whole teams.
        PlanError: see `check_attention`.
    """
    plan = assign(
        op.shape,
        span_tokens=schedule.span_tokens,
        columns=schedule.tiling_of(op.shape).columns,
        num_queues=num_attention_clusters(gpu, schedule.cluster),
        contiguous=schedule.contiguous,
        cluster=schedule.cluster,
        form=op.form,
        by_length=schedule.by_length,
    )
    if schedule.next_early:
        clusters = num_attention_clusters(gpu, schedule.cluster)
        plan = replace(plan, num_asking=max(0, clusters - plan.num_queues))
    check_attention(plan, tile_tokens=schedule.tile_tokens)
    check_made_for(plan, schedule)
    return plan


def digest_of(plan: AttentionPlan, schedule: AttentionSchedule) -> str:
    """sha256, hex, of the launch's arguments and of what was proven about it."""
    sizes = (plan.op, plan.form, plan.span_tokens, plan.columns, plan.cluster, plan.tasks.shape, Frozen(schedule))
    later = (plan.by_length, plan.num_asking)  # left out if default, so that older digests stay the same
    facts = (*sizes, *later) if any(later) else sizes
    words = plan.tasks.astype("<i4").tobytes() + plan.queues.astype("<i4").tobytes()
    engine = "" if schedule.engine is AttentionEngine.TMA else str(schedule.engine)
    return hashlib.sha256(words + (repr(facts) + engine).encode()).hexdigest()


def check_plan(op: AttentionOp, schedule: AttentionSchedule, plan: AttentionPlan) -> None:
    """Returns if the plan is correct and belongs to the op with this schedule.

    Raises:
        PlanError: it belongs to a different op or schedule; see also `check_attention`.
    """
    if (plan.op, plan.form) != (op.shape, op.form):
        raise WordError("the plan is for another op", f"for {plan.op} and {plan.form}, but {op.name} is {op.shape}")
    check_attention(plan, tile_tokens=schedule.tile_tokens)
    check_made_for(plan, schedule)


def check_attention(plan: AttentionPlan, *, tile_tokens: int) -> None:
    """Returns if a launch of the plan is correct for all lengths up to the longest, and for any page numbers.

    Raises:
        InvalidInput: a paged cache has more rows than a tensor map supports.
        WordError: a word is out of range, or queues are not consecutive.
        ResourceError: there are more queues than a parameter has space for, or numbers that the device cannot
            represent.
        CoverageError: a span belongs to no task, or to two.
    """
    plan.form.check_of(plan.op)
    _check_sizes(plan, tile_tokens)
    _check_queues(plan)
    _check_counts(plan, tile_tokens)
    _check_coverage(plan)


def check_made_for(plan: AttentionPlan, schedule: AttentionSchedule) -> None:
    """Returns if the plan was made for the schedule's kernel, in which some of its properties are constants.

    Raises:
        WordError: names the first difference.
    """
    wanted = {
        "span_tokens": schedule.span_tokens,
        "columns": schedule.tiling_of(plan.op).columns,
        "cluster": schedule.cluster,
        "by_length": schedule.by_length,
    }
    for name, value in wanted.items():
        if getattr(plan, name) != value:
            raise WordError(f"the plan's {name} differs from the schedule's", f"{getattr(plan, name)!r}, not {value!r}")
    if schedule.speculative and (plan.by_length or not plan.form.knows_tokens_early):
        raise WordError("a first task depends on the lengths", "nothing can be requested before these are known")
    if plan.num_asking and not schedule.next_early:
        detail = f"num_asking is {plan.num_asking}; it must be 0, since no weights are prefetched early"
        raise WordError("clusters without tasks have nothing to do", detail)


def _check_sizes(plan: AttentionPlan, tile_tokens: int) -> None:
    if plan.columns not in BLOCK_COLUMNS:
        raise WordError("a block must have 8 or 16 columns", f"{plan.columns} are given")
    if plan.cluster not in CLUSTERS:
        raise WordError("a cluster must have 1, 2, 4, 8 or 16 CTAs", f"{plan.cluster} are given")
    share = plan.cluster * tile_tokens
    if plan.span_tokens < 1 or plan.span_tokens % share:
        detail = f"{plan.span_tokens} tokens in tiles of {tile_tokens}, {share} of them for the whole cluster"
        raise WordError("a span must have whole tiles, the same number for each CTA", detail)
    for name, number, most in (("spans", plan.num_spans, _MOST_SPANS), ("blocks", plan.num_blocks, _MOST_BLOCKS)):
        if number > most:
            raise WordError(f"a task has no space for the number of {name}", f"{number}; the maximum is {most}")


def _check_queues(plan: AttentionPlan) -> None:
    tables = (("tasks", plan.tasks, (len(plan.tasks), 2)), ("queues", plan.queues, (len(plan.queues),)))
    for name, table, shape in tables:
        if table.dtype != np.int32 or table.shape != shape:
            detail = f"they are {table.dtype} with shape {table.shape}"
            raise WordError(f"{name} must be words of 32 bits, two per task and one per queue", detail)
    if plan.num_queues > MOST_QUEUES:
        detail = f"{plan.num_queues} queues; the maximum is {MOST_QUEUES}"
        raise ResourceError("the parameter has no space for all first tasks", detail)
    queues = plan.queues.astype(np.int64)
    if len(queues) < 2 or queues[0] != 0 or queues[-1] != len(plan.tasks):
        raise WordError(
            "queues must hold all tasks", (f"they are from {queues[:1]} to {queues[-1:]} of {len(plan.tasks)}")
        )
    if empty := np.flatnonzero(np.diff(queues) < 1).tolist():
        raise WordError("each queue must have a task", f"queue {empty[0]} has none")


def _check_counts(plan: AttentionPlan, tile_tokens: int) -> None:
    if not isinstance(plan.by_length, bool):
        raise WordError("by_length must be true or false", f"it is {plan.by_length!r}")
    most_asking = MOST_QUEUES - plan.num_queues
    if not isinstance(plan.num_asking, int) or not 0 <= plan.num_asking <= most_asking:
        right = f"it must be 0 to {most_asking}: with the {plan.num_queues} queues, at most {MOST_QUEUES} clusters"
        raise WordError("the number of clusters that prefetch weights is out of range", f"{plan.num_asking!r}; {right}")
    share = plan.cluster * tile_tokens
    counts = {
        "tokens": plan.lengths.most + plan.span_tokens + (_TILES_BEYOND + 2) * share,
        "tokens of a window": (plan.form.window or 0) + plan.op.new_tokens,
        "slots": plan.num_slots,
        "tasks": len(plan.tasks) + 2 * plan.num_queues,
        "tiles of a CTA": plan.most_tasks * (plan.span_tokens // share),
    }
    for name, count in counts.items():
        if count > _MOST_COUNT:
            raise ResourceError(f"the device cannot count the {name}", f"up to {count}; the maximum is {_MOST_COUNT}")


def _check_coverage(plan: AttentionPlan) -> None:
    words, tiles = plan.tasks.astype(np.int64), plan.tiles
    check_reach(tiles)
    fields = (words[:, 0] >> 16, words[:, 0] & 0xFFFF, words[:, 1] >> 24, words[:, 1] & 0xFFFFFF)
    shape = tiles.grid
    for name, values, end in zip(("sequence", "KV head", "block", "span"), fields, shape, strict=True):
        if outside := np.flatnonzero((values < 0) | (values >= end)).tolist():
            raise WordError(f"task {outside[0]} has a {name} that is out of range", f"{values[outside[0]]}, of {end}")
    times = np.zeros(shape, dtype=np.int64)
    np.add.at(times, fields, 1)
    if wrong := np.argwhere(times != 1).tolist():
        sequence, head, block, span = wrong[0]
        raise CoverageError(
            f"span {span} is the task of {times[tuple(wrong[0])]} queue entries",
            f"sequence {sequence}, KV head {head}, block {block}",
        )
