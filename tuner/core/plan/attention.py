"""The tasks of decode attention, assigned to the CTAs' queues.

A task is a chunk of one sequence's context for a block of columns of one KV head. All tasks that the longest context
has are there. Which of them are empty follows from the lengths of a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.core.problem.attention import DecodeAttention

#: One row for each task: sequence << 16 | KV head, then block of columns << 24 | chunk.
Words = np.ndarray[tuple[int, int], np.dtype[np.int32]]
#: Places in the table of tasks.
Places = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """What a launch is told of its tasks."""

    op: DecodeAttention
    #: Tokens of a chunk: whole tiles.
    chunk_tokens: int
    #: Queries of a task: 8 or 16.
    columns: int
    #: Of all queues, one behind the other.
    tasks: Words
    #: Where the queue of each CTA begins, and where the last one ends.
    queues: Places

    @property
    def num_ctas(self) -> int:
        """Each has a task at least."""
        return len(self.queues) - 1

    @property
    def num_chunks(self) -> int:
        """Of the longest context."""
        return -(-self.op.max_length // self.chunk_tokens)

    @property
    def num_blocks(self) -> int:
        """Into which the columns of a KV head are cut."""
        return -(-self.op.columns // self.columns)

    @property
    def num_slots(self) -> int:
        """Where chunks meet."""
        return self.op.sequences * self.op.kv_heads * self.num_blocks

    @property
    def arrivals_per_launch(self) -> int:
        """Of a slot, whatever the lengths: a power of two, so that a counter of 32 bits may wrap."""
        return 1 << (self.num_chunks - 1).bit_length()

    @property
    def first_tasks(self) -> Words:
        """The first task of each CTA."""
        return self.tasks[self.queues[:-1]]

    def live_chunks(self, length: int) -> int:
        """Chunks that a sequence of that length has: one at least."""
        return max(1, -(-length // self.chunk_tokens))

    def arrivals(self, chunk: int, length: int) -> int:
        """What the task of a chunk counts for: chunk 0 arrives for all that do not."""
        live = self.live_chunks(length)
        if chunk == 0:
            return self.arrivals_per_launch - live + 1
        return 1 if chunk < live else 0


def assign(op: DecodeAttention, *, chunk_tokens: int, columns: int, num_ctas: int, contiguous: bool) -> AttentionPlan:
    """Tasks in the order of slots, and in a slot of chunks.

    `contiguous`: each CTA takes neighbours. Else they go to the CTAs in turns, so that chunks of a slot end at about
    the same time.
    """
    num_chunks, num_blocks = -(-op.max_length // chunk_tokens), -(-op.columns // columns)
    grid = np.indices((op.sequences, op.kv_heads, num_blocks, num_chunks), dtype=np.int32).reshape(4, -1)
    sequence, head, block, chunk = grid
    tasks = np.stack([sequence << 16 | head, block << 24 | chunk], axis=1)
    used = min(num_ctas, len(tasks))
    ends = np.array([len(tasks) * cta // used for cta in range(used + 1)], dtype=np.int32)
    if not contiguous:
        sizes = [len(range(cta, len(tasks), used)) for cta in range(used)]
        tasks = np.concatenate([tasks[cta::used] for cta in range(used)])
        ends = np.array([0, *np.cumsum(sizes)], dtype=np.int32)
    return AttentionPlan(op=op, chunk_tokens=chunk_tokens, columns=columns, tasks=tasks, queues=ends)
