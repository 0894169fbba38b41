"""From what an attention's CTAs stamp to spans of a trace: of each CTA its first tasks, phase by phase.

A traced kernel leaves rows of words. In a task's row lie the cycles at which its phases ended, at the places below. The
first two words of the first row have the global nanoseconds and cycles at which the CTA began, those of the second
row the same of its end. The second word of the third row is its SM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.core.plan.attention import AttentionPlan

#: [CTAs, `TRACED_TASKS`, `TRACE_WORDS`] of one launch; what was not stamped is not above 0.
AttentionStamps = npt.NDArray[np.int64]
#: Tasks of a CTA that a traced build stamps, and the 64-bit words of each; `kTracedTasks` and `kTraceWords`.
TRACED_TASKS, TRACE_WORDS = 8, 8
#: Places in a row, by `AttentionEvent` in args_attention.cuh. Not every CTA arrives, nor adds up what spans left.
_FIRST_K, _LAST_TILE, _MERGED, _ARRIVED, _COMBINED, _TAKEN = range(2, TRACE_WORDS)


@dataclass(frozen=True, kw_only=True)
class TracedAttention:
    """One launch of a traced build."""

    #: Of its op.
    name: str
    plan: AttentionPlan
    #: Of its sequences, at that launch.
    lengths: Sequence[int]
    stamps: AttentionStamps

    @property
    def num_ctas(self) -> int:
        """That have tasks."""
        return self.plan.num_queues * self.plan.cluster

    def check(self) -> None:
        """That all that ran is there.

        Raises:
            ValueError: it is not, or is more than a CTA stamps.
        """
        shape = self.stamps.shape[1:]
        if shape != (TRACED_TASKS, TRACE_WORDS) or len(self.stamps) < self.num_ctas:
            raise ValueError(f"{self.name}: stamps of shape {self.stamps.shape} for {self.num_ctas} CTAs")
        most = max(map(len, self.places()), default=0)
        if most > TRACED_TASKS:
            raise ValueError(f"a CTA of {self.name} has {most} tasks, and stamps no more than {TRACED_TASKS}")
        if (missing := np.flatnonzero((self.ctas()[:, :4] <= 0).any(axis=1))).size:
            raise ValueError(f"CTA {missing[0]} of {self.name} left no stamps, and {missing.size - 1} others")

    def places(self) -> list[list[int]]:
        """Of each queue the tasks that run, as places in the table of `AttentionPlan.run_at`."""
        return self.plan.running_at(self.lengths)

    def ctas(self) -> npt.NDArray[np.int64]:
        """Of each CTA with tasks its begin and end, each cycles and global nanoseconds, its SM and 0."""
        words = self.stamps[: self.num_ctas]
        begin, end = words[:, 0, 1::-1], words[:, 1, 1::-1]
        sm = words[:, 2, 1]
        return np.stack([begin[:, 0], begin[:, 1], end[:, 0], end[:, 1], sm, np.zeros_like(sm)], axis=1)

    def cycles(self, cta: int, number: int) -> npt.NDArray[np.int64]:
        """When the CTA's task of that number was taken, had its queries, had multiplied its first tile and its last
        one, and was stored. The first one is taken when the CTA begins, the others when they have their queries.

        Raises:
            ValueError: the task left none.
        """
        row = self.stamps[cta, number]
        taken = self.stamps[cta, 0, 1] if number == 0 else row[_TAKEN]
        stored = row[[_MERGED, _ARRIVED, _COMBINED]].max()
        found = np.array([taken, row[_TAKEN], row[_FIRST_K], row[_LAST_TILE], stored], dtype=np.int64)
        if found[[1, 3, 4]].min() <= 0:
            raise ValueError(f"task {number} of CTA {cta} of {self.name} left no stamps")
        return np.maximum.accumulate(found)  # a CTA without a tile has no first one


def tile_of(plan: AttentionPlan, words: Sequence[int]) -> tuple[int, int]:
    """A task's sequence, and its column: span by span, in a span block by block of each KV head."""
    head, block, span = words[0] & 0xFFFF, words[1] >> 24, words[1] & 0xFFFFFF
    return words[0] >> 16, (span * plan.op.kv_heads + head) * plan.num_blocks + block
