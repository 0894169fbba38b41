"""The tasks of decode attention, dealt to the CTAs' queues.

A task is a chunk of one sequence's context for a block of columns of one KV head. All tasks that the longest context has
are there. Which of them are empty follows from the lengths of a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.core.problem.attention import DecodeAttention

#: One task: sequence << 16 | KV head, block of columns << 24 | chunk.
Words = np.ndarray[tuple[int, int], np.dtype[np.int32]]


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """What a launch is told of its tasks."""

    op: DecodeAttention
    #: Tokens of a chunk: whole tiles.
    chunk_tokens: int
    #: Queries of a task, a multiple of 8.
    columns: int
    #: Of all queues, one behind the other.
    tasks: Words
    #: Where the queue of each CTA begins, and where the last one ends.
    queues: np.ndarray[tuple[int], np.dtype[np.int32]]

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


def deal(op: DecodeAttention, *, chunk_tokens: int, columns: int, num_ctas: int, contiguous: bool) -> AttentionPlan:
    """Tasks in the order of slots, and in a slot of chunks. `contiguous`: each CTA takes neighbours; else they are dealt
    in turns, so that the chunks of a slot end at about the same time."""
    num_chunks, num_blocks = -(-op.max_length // chunk_tokens), -(-op.columns // columns)
    grid = np.indices((op.sequences, op.kv_heads, num_blocks, num_chunks), dtype=np.int32).reshape(4, -1)
    sequence, head, block, chunk = grid
    tasks = np.stack([sequence << 16 | head, block << 24 | chunk], axis=1)
    used = min(num_ctas, len(tasks))
    ends = np.array([len(tasks) * cta // used for cta in range(used + 1)], dtype=np.int32)
    if not contiguous:
        tasks = np.concatenate([tasks[cta::used] for cta in range(used)])
        sizes = [len(range(cta, len(sequence), used)) for cta in range(used)]
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return AttentionPlan(
        op=op, chunk_tokens=chunk_tokens, columns=columns, tasks=np.ascontiguousarray(tasks), queues=ends
    )
