"""How an attention is launched: what is compiled into its kernel, and how its tasks are assigned to CTAs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from tuner.core.schedule.axis import LATER, axis, log2, nothing, words_of
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.errors import IllegalSchedule
from tuner.ops.attention.shapes.shape import DecodeAttention

TILE_TOKENS = (16, 32, 64, 128)
MATH_WARPS = (1, 2, 4, 8)
#: Maximum stages of a ring, for which there is space for barriers; `kBarrierBytes` in ring_attention.cuh.
MOST_STAGES = 18
#: Columns of a task: the queries of a KV head are cut into blocks of one of these sizes.
BLOCK_COLUMNS = (8, 16)
#: Larger clusters need an opt-in from the driver.
MOST_PORTABLE_CLUSTER = 8
#: Tasks that are in shared memory at the same time; `kTaskSlots` in ring_attention.cuh.
_TASK_SLOTS = 3
#: Bytes of the ring's barriers.
_BARRIER_BYTES = 512


class AttentionEngine(StrEnum):
    """How queries and cache are loaded into shared memory. In each engine, both products use `mma.sync`."""

    #: The copy engine loads, and one thread issues all copies; sm_90 only.
    TMA = "tma"
    #: The lanes of two warps load with `cp.async`; sm_80 and newer. It has no clusters.
    MMA = "mma"


@dataclass(frozen=True, kw_only=True)
class AttentionTiling:
    """What is compiled into an attention kernel."""

    #: Elements of a head: 64 or 128.
    head_dim: int
    #: Queries of a task: 8 or 16.
    columns: int
    #: Tokens that arrive together: 16, 32, 64 or 128.
    tile_tokens: int
    #: Tiles of K, and as many of V, that the ring holds: a multiple of the number of teams.
    num_stages: int
    #: Warps that multiply: a multiple of tile_tokens / 16.
    math_warps: int
    #: Maximum columns that have a query in any task; 0 if all columns may have one.
    live_columns: int = 0
    #: Warps that finish a task while the next one is multiplied; 0: the multiplying warps do it.
    finish_warps: int = 4
    #: CTAs that share a task: 1, 2, 4, 8 or 16.
    cluster: int = 1
    #: Loads in flight at the same time in a sum over spans.
    parts_at_once: int = 16
    #: How queries and cache are loaded into shared memory.
    engine: AttentionEngine = AttentionEngine.TMA

    def __post_init__(self) -> None:
        """Checks that a stage always belongs to the same team.

        Raises:
            IllegalSchedule: teams are not whole, or share a stage.
        """
        if self.math_warps % (self.tile_tokens // 16):
            raise IllegalSchedule(f"{self.math_warps} warps cannot be split into teams of {self.tile_tokens // 16}")
        if self.num_stages % self.num_teams:
            raise IllegalSchedule(
                f"the number of stages ({self.num_stages}) must be a multiple of the number of teams ({self.num_teams})"
            )

    @property
    def num_teams(self) -> int:
        """Groups of warps that take a task's tiles in turn."""
        return self.math_warps // (self.tile_tokens // 16)

    @property
    def num_threads(self) -> int:
        """Threads of a CTA: one warp requests, or two without the copy engine."""
        request_warps = 1 if self.engine is AttentionEngine.TMA else 2
        return 32 * (self.math_warps + self.finish_warps + request_warps)

    @property
    def kept_columns(self) -> int:
        """Columns that have space in shared memory; `kLiveColumns`."""
        return self.live_columns or self.columns

    @property
    def ring_bytes(self) -> int:
        """Size of the ring: tiles of K and V that are in flight or in use."""
        return self.num_stages * 4 * self.tile_tokens * self.head_dim

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA; `kAttentionSmem` in merge_attention.cuh."""
        kept, ring = self.kept_columns, self.ring_bytes
        tasks = _TASK_SLOTS * (16 + kept * (2 * self.head_dim + 16))
        stats = -(-8 * self.math_warps * kept // 16) * 16
        sums = self.math_warps * kept * 4 * (self.head_dim + 4) + stats
        share = -(-kept * self.head_dim // 4 // self.cluster)
        received = 0 if self.cluster == 1 else 2 * self.cluster * (16 * share + 8 * (kept + kept % 2))
        return ring + _BARRIER_BYTES + tasks + sums + received + 16

    @property
    def partial_floats(self) -> int:
        """Partial sums of a span in its slot, in floats; `kPartialFloats` in merge_attention.cuh."""
        return self.columns * (self.head_dim + 2 * self.cluster)


@dataclass(frozen=True, kw_only=True)
class AttentionSchedule(LaunchOpSchedule, kind="attention"):
    """One point of an attention's space. Head, columns and element type follow from the op."""

    RELEASED_IN: ClassVar[str] = "attentions"
    RELEASED_AXES: ClassVar[tuple[str, ...]] = (
        *("tile_tokens", "num_stages", "math_warps", "finish_warps", "cluster", "parts_at_once", "span_tokens"),
        *("contiguous", "speculative", "by_length", "next_percent", "next_early", "engine"),
    )

    #: Tokens that arrive together: 16, 32, 64 or 128.
    tile_tokens: int = axis(values=TILE_TOKENS, features=log2)
    #: Tiles of K, and as many of V, that the ring holds.
    num_stages: int = axis(features_in=lambda value, of: (math.log2(value * of.tile_tokens),))
    #: Warps that multiply.
    math_warps: int = axis(values=MATH_WARPS, features=log2)
    #: Warps that finish a task while the next one is multiplied; 0: the multiplying warps do it.
    finish_warps: int = axis(4, values=(0, 1, 2, 3, 4), features=lambda value: (0.5 * math.log2(1 + value),))
    #: CTAs that share a task.
    cluster: int = axis(1, values=(1, 2, 4, 8, 16), features=log2)
    #: Loads in flight at the same time in a sum over spans.
    parts_at_once: int = axis(16, values=(4, 8, 16, 32), features=lambda value: (0.3 * math.log2(value),))
    #: Tokens of a span, which one task processes.
    span_tokens: int = axis(features=nothing)
    #: Whether each cluster takes neighbouring tasks; otherwise clusters take tasks in turn.
    contiguous: bool = axis(False)
    #: Whether a CTA requests its first tiles before the length of their sequence is known.
    speculative: bool = axis(False)
    #: Whether a launch assigns the tasks that its lengths leave; otherwise the plan assigns all possible ones.
    by_length: bool = axis(False)
    #: Per cent of each row of the next launch's weights that this launch prefetches into the L2, when a CTA has
    #: received all of its own tiles; 0 if no launch follows.
    next_percent: int = axis(0, values=(0, 25, 50, 75, 100), features=lambda value: (value / 100,))
    #: Whether it requests these weights before the previous launch has ended, i.e. before its own tiles.
    next_early: bool = axis(False)
    #: How queries and cache are loaded into shared memory. Proofs are named by `repr`, which omits it.
    engine: AttentionEngine = axis(AttentionEngine.TMA, repr=False, since=LATER, features=nothing)

    @property
    def compiled(self) -> AttentionSchedule:
        """The schedule without spans and orders, which are arguments of a launch."""
        return replace(self, span_tokens=0, contiguous=False, speculative=False)

    def tiling_of(self, shape: DecodeAttention) -> AttentionTiling:
        """The tiling that is compiled for an op.

        Raises:
            IllegalSchedule: teams are not whole, or share a stage.
        """
        columns = min((number for number in BLOCK_COLUMNS if number >= shape.columns), default=max(BLOCK_COLUMNS))
        return AttentionTiling(
            head_dim=shape.head_dim,
            columns=columns,
            live_columns=min(columns, shape.columns),
            tile_tokens=self.tile_tokens,
            num_stages=self.num_stages,
            math_warps=self.math_warps,
            finish_warps=self.finish_warps,
            cluster=self.cluster,
            parts_at_once=self.parts_at_once,
            engine=self.engine,
        )

    def taken_bytes(self, row_bytes: int) -> int:
        """Bytes that are prefetched from the start of a weight row of `row_bytes` bytes: whole vectors of 16 bytes."""
        return row_bytes * self.next_percent // 100 // 16 * 16

    def num_spans(self, shape: DecodeAttention) -> int:
        """Spans of the longest context."""
        return -(-shape.max_length // self.span_tokens)

    def __str__(self) -> str:
        engine = "" if self.engine is AttentionEngine.TMA else f" {self.engine}"
        ring = f"attention{engine} {self.tile_tokens}x{self.num_stages} w{self.math_warps}+{self.finish_warps}"
        cluster = f" cluster{self.cluster}" if self.cluster > 1 else ""
        words = [("neighbours", self.contiguous), ("early", self.speculative), ("by-length", self.by_length)]
        flags = "".join(f" {word}" for word, is_set in words if is_set)
        ahead = f" next{self.next_percent}{'-early' if self.next_early else ''}" if self.next_percent else ""
        return f"{ring} parts{self.parts_at_once}{cluster} span{self.span_tokens}{flags}{ahead}{words_of(self)}"
