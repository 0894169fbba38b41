"""The tasks of decode attention, assigned to the CTAs' queues.

A task is a span of one sequence's context for a block of columns of one KV head. The CTAs of a cluster share it: they
take its tiles in turn. The table has all tasks of the longest context. The lengths of a launch decide which of them are
empty. A plan may have no table: then each launch assigns the tasks that are not empty at its lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.core.plan.graph.boxes import Bound, Box, BoxRead, Extent, RunTimeInput, TileSpace, along
from tuner.core.plan.table.header import MOST_QUEUES
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.axis import axes_of
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention

#: CTAs that may share a task.
CLUSTERS: tuple[int, ...] = axes_of(AttentionSchedule)["cluster"].values
#: Sequences whose lengths a warp holds at a time.
SEQUENCES_AT_ONCE = 32
#: One row per task: sequence << 16 | KV head, then block of columns << 24 | span.
Words = np.ndarray[tuple[int, int], np.dtype[np.int32]]
#: Positions in the table of tasks.
Places = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """The tasks of a launch."""

    op: DecodeAttention
    #: Tokens of a span: at least one tile per CTA of a cluster.
    span_tokens: int
    #: Queries of a task: 8 or 16.
    columns: int
    #: The tasks of all queues, in order.
    tasks: Words
    #: Where the queue of each cluster begins, and where the last one ends.
    queues: Places
    #: CTAs that share a task.
    cluster: int = 1
    form: AttentionForm = PLAIN
    #: Whether a launch assigns the tasks that are not empty to the clusters, without a table.
    by_length: bool = False
    #: Clusters after those that have tasks; they request the next launch's weights into the L2 and end.
    num_asking: int = 0

    @property
    def num_assigned(self) -> int:
        """Number of sequences whose tasks a launch assigns; 0 if the table has them."""
        return self.op.sequences if self.by_length else 0

    @property
    def num_queues(self) -> int:
        """Number of clusters; each has at least one task."""
        return len(self.queues) - 1

    @property
    def num_ctas(self) -> int:
        """CTAs of all clusters."""
        return (self.num_queues + self.num_asking) * self.cluster

    @property
    def most_tasks(self) -> int:
        """Maximum number of tasks in a queue, at any lengths."""
        return -(-len(self.tasks) // self.num_queues) if self.by_length else int(np.diff(self.queues).max())

    @property
    def num_spans(self) -> int:
        """Spans of the longest context."""
        return -(-self.op.max_length // self.span_tokens)

    @property
    def num_blocks(self) -> int:
        """Number of blocks into which the columns of a KV head are cut."""
        return -(-self.op.columns // self.columns)

    @property
    def lengths(self) -> RunTimeInput:
        """The length of each sequence, which a launch passes."""
        return RunTimeInput(name="lengths", count=self.op.sequences, least=0, most=self.op.max_length)

    @property
    def tiles(self) -> TileSpace:
        """The tasks' grid, by sequence, KV head, block and span. A task reads one span of the context, up to the
        sequence's length, and writes one position in a slot."""
        grid = (self.op.sequences, self.op.kv_heads, self.num_blocks, self.num_spans)
        begin = np.arange(self.num_spans, dtype=np.int64) * self.span_tokens
        spans = Extent(axes=(3,), begin=begin, end=np.minimum(begin + self.span_tokens, self.op.max_length))
        sequence, head, block, span = (along(axis, size, 1) for axis, size in enumerate(grid))
        return TileSpace(
            name="attention",
            grid=grid,
            num_steps=1,
            writes=(Box(tensor="slots", extents=(sequence, head, block, span)),),
            reads=(BoxRead(box=Box(tensor="context", extents=(sequence, head, spans))),),
            row_axes=3,
            bounds=(Bound(tensor="context", dimension=2, limit=self.lengths, by=0),),
        )

    @property
    def num_slots(self) -> int:
        """Number of slots, each of which collects the partial sums of a context's spans."""
        return self.op.sequences * self.op.kv_heads * self.num_blocks

    @property
    def num_counters(self) -> int:
        """Number of arrival counters: each CTA of a cluster adds up its own part of a slot."""
        return self.num_slots * self.cluster

    @property
    def arrivals_per_launch(self) -> int:
        """Arrivals at a slot, whatever the lengths: a power of two, so that a counter of 32 bits may wrap."""
        return 1 << (self.num_spans - 1).bit_length()

    @property
    def first_tasks(self) -> Words:
        """The first task of each queue."""
        return self.tasks[self.queues[:-1]]

    def live_spans(self, length: int) -> range:
        """Spans that are not empty for a sequence of `length` tokens: at least one."""
        first = self.form.first_seen(self.op, length) // self.span_tokens
        return range(first, max(1, -(-length // self.span_tokens)))

    def assigned_at(self, lengths: Sequence[int]) -> tuple[Words, Places]:
        """Tasks and queues as a launch of these lengths assigns them. It handles 32 sequences at a time: first their
        whole spans, sequence by sequence, then the remainders, the longest first; within a span, block by block of
        each KV head. Clusters take them in order, then in reverse order, alternately. A queue may be empty."""
        known = np.asarray(lengths)
        live = np.array([(spans.start, spans.stop) for spans in map(self.live_spans, lengths)])
        first, last = live[:, 0], live[:, 1] - 1
        rests = np.clip(known - last * self.span_tokens, 0, self.span_tokens)
        is_rest = rests < self.span_tokens
        counts = last + 1 - first - is_rest
        whole = np.repeat(np.arange(len(live)), counts)
        number = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        sequence = np.concatenate([whole, np.flatnonzero(is_rest)])
        span = np.concatenate([first[whole] + number, last[is_rest]])
        tokens = np.concatenate([np.full(len(whole), self.span_tokens), rests[is_rest]])
        order = np.lexsort((-tokens, sequence // SEQUENCES_AT_ONCE))
        blocks = self.op.kv_heads * self.num_blocks
        sequence, span = (np.repeat(found[order], blocks) for found in (sequence, span))
        head, block = np.divmod(np.arange(len(sequence)) % blocks, self.num_blocks)
        tasks = np.stack([sequence << 16 | head, block << 24 | span], axis=1).astype(np.int32)
        return _there_and_back(tasks, self.num_queues)

    def run_at(self, lengths: Sequence[int]) -> tuple[Words, Places]:
        """Tasks and the beginnings of queues at the given lengths; if there is a table, including empty tasks."""
        return self.assigned_at(lengths) if self.by_length else (self.tasks, self.queues)

    def arrivals(self, span: int, length: int) -> int:
        """The number of arrivals that a span's task makes: the first span that is not empty also arrives for all empty
        ones."""
        live = self.live_spans(length)
        if span == live.start:
            return self.arrivals_per_launch - len(live) + 1
        return 1 if span in live else 0

    def own_tiles(self, span: int, length: int, tile_tokens: int, rank: int) -> range:
        """The tiles of a span that the CTA with rank `rank` takes: in turn, starting with the first visible tile."""
        begin = span * self.span_tokens
        tokens = min(max(length - begin, 0), self.span_tokens)
        skipped = max(self.form.first_seen(self.op, length) - begin, 0) // tile_tokens
        return range(skipped + rank, -(-tokens // tile_tokens), self.cluster)


def num_attention_clusters(gpu: Gpu, cluster: int) -> int:
    """Number of a launch's queues: clusters that are resident at the same time, with one CTA per SM."""
    return max(1, min(MOST_QUEUES, gpu.num_clusters(cluster)))


def assign(
    op: DecodeAttention,
    *,
    span_tokens: int,
    columns: int,
    num_queues: int,
    contiguous: bool,
    cluster: int = 1,
    form: AttentionForm = PLAIN,
    by_length: bool = False,
) -> AttentionPlan:
    """A plan with tasks in the order of slots, and within a slot in the order of spans.

    If `contiguous`, each cluster takes adjacent tasks. Otherwise clusters take tasks in turn, so that spans of a slot
    end at about the same time. If `by_length`, a launch assigns the tasks itself.
    """
    num_spans, num_blocks = -(-op.max_length // span_tokens), -(-op.columns // columns)
    grid = np.indices((op.sequences, op.kv_heads, num_blocks, num_spans), dtype=np.int32).reshape(4, -1)
    sequence, head, block, span = grid
    tasks = np.stack([sequence << 16 | head, block << 24 | span], axis=1)
    used = min(num_queues, len(tasks))
    ends = np.array([len(tasks) * queue // used for queue in range(used + 1)], dtype=np.int32)
    if not contiguous:
        tasks, ends = _in_turns(tasks, used)
    return AttentionPlan(
        op=op,
        span_tokens=span_tokens,
        columns=columns,
        tasks=tasks,
        queues=ends,
        cluster=cluster,
        form=form,
        by_length=by_length,
    )


def _in_turns(tasks: Words, num_queues: int) -> tuple[Words, Places]:
    """Distributes tasks over the queues in turn. Returns the tasks queue by queue, and the offset at which each queue
    begins, with the end of the last one."""
    sizes = [len(range(queue, len(tasks), num_queues)) for queue in range(num_queues)]
    assigned: Words = np.concatenate([tasks[queue::num_queues] for queue in range(num_queues)])
    return assigned, np.array([0, *np.cumsum(sizes)], dtype=np.int32)


def _there_and_back(tasks: Words, num_queues: int) -> tuple[Words, Places]:
    """Like `_in_turns`, but every second round starts with the last queue."""
    turn, place = np.divmod(np.arange(len(tasks)), num_queues)
    queue = np.where(turn % 2, num_queues - 1 - place, place)
    sizes = np.bincount(queue, minlength=num_queues)
    return tasks[np.argsort(queue, kind="stable")], np.array([0, *np.cumsum(sizes)], dtype=np.int32)
