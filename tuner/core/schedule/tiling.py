"""The part of a schedule that is fixed when a kernel of tile ops is compiled: engine, tiles, stages, warps; each
changes the source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from tuner.core.schedule.axis import LATER, NO_AXIS, axes_of, axis, log2, whole_step, words_of


class Engine(StrEnum):
    """The main loop that computes a tile."""

    #: mma.sync fed by multi-stage cp.async; sm_80 and up.
    MMA = "mma"
    #: wgmma fed by the copy engine (TMA), with warpgroups that copy and warpgroups that multiply; sm_90a.
    WGMMA = "wgmma"
    #: Dot products on the CUDA cores, for one to four rows; sm_80 and up.
    SIMT = "simt"


class CacheHint(StrEnum):
    """How soon the L2 may evict a line."""

    #: The engine's own hint.
    DEFAULT = "default"
    #: No hint.
    NORMAL = "normal"
    #: Before other lines: read only once.
    EVICT_FIRST = "evict_first"
    #: After other lines: read again soon.
    EVICT_LAST = "evict_last"


class Warpgroups(StrEnum):
    """How the warpgroups that multiply share the tasks of a CTA."""

    #: All of them compute each task together, some of its rows each.
    COOPERATIVE = "cooperative"
    #: Two take turns: one multiplies while the other one stores the previous task.
    PING_PONG = "ping_pong"


class Epilogue(StrEnum):
    """How a finished tile is moved from registers to global memory."""

    #: By the threads that hold it.
    DIRECT = "direct"
    #: By the copy engine (TMA), from shared memory in chunks of 64 columns.
    TMA = "tma"


class PartSums(StrEnum):
    """Which part adds up the parts of a tile."""

    #: The part that finishes last adds up the whole tile; the others have moved on.
    LAST = "last"
    #: Each part adds up and stores a share of the tile, and waits for the others' sums of it (reduce-scatter).
    SCATTERED = "scattered"


#: Threads of the warpgroup that only copies for the others, and of the one that reads in band.
COPYING_THREADS = 128
READING_THREADS = 128


@dataclass(frozen=True, kw_only=True)
class Tile:
    """The piece of one op that one task computes: m x n outputs, k at a time."""

    #: Rows of C: a multiple of 16, or 1, 2 or 4 for simt.
    m: int = axis(param="tile_m", features=log2)
    #: Columns of C: a multiple of 8 or 16, or of the warps for simt.
    n: int = axis(param="tile_n", features=log2)
    #: Depth of one pipeline stage, a multiple of 32.
    k: int = axis(param="tile_k", features=log2)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def _share(window: int, of: KernelConfig) -> tuple[float]:
    """The share of the ring that a window allows."""
    return ((window or of.num_stages) / of.num_stages,)


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Settings compiled into the kernel that launches of tile ops share, independent of their tiles."""

    #: The main loop.
    engine: Engine = axis(Engine.MMA, features=lambda value: [value is one for one in (Engine.WGMMA, Engine.SIMT)])
    #: Depth of the shared-memory ring, >= 2: of the weights for wgmma, otherwise of all operands.
    num_stages: int = axis(word="s{}", features=log2)
    #: Depth of the separate ring of inputs, >= 2, for wgmma; 0 for the others, which have one ring.
    input_stages: int = axis(0, word="i{}", since=LATER, features=lambda value: (math.log2(max(1, value)),))
    #: Maximum stages of weights that are requested but have not arrived; 0 for no limit besides the ring. For wgmma.
    window: int = axis(0, word="window{}", since=LATER, features_in=_share)
    #: Limit like `window` while the ring fills ahead of a task that waits; 0 for no separate limit. For wgmma.
    ahead_window: int = axis(0, word="ahead-window{}", since=LATER, features_in=_share)
    #: Stages of its first task's weights beyond the ring that a CTA prefetches into the L2 at the start, 0, 2, 4 or 8.
    #: For wgmma.
    startup_prefetch: int = axis(
        0, word="prefetch{}", since=LATER, features=lambda value: (0.2 * math.log2(1 + value),)
    )
    #: Warps per CTA that multiply; 4 or 8, for wgmma also 12.
    num_warps: int = axis(word="w{}", features=log2)
    #: How the warpgroups that multiply share the tasks. For wgmma.
    warpgroups: Warpgroups = axis(Warpgroups.COOPERATIVE, word="ping-pong", since=LATER, features=whole_step)
    #: Whether the weights are operand A of wgmma, of which an instruction takes 64 rows, and the inputs operand B;
    #: otherwise the reverse. For wgmma.
    swap_ab: bool = axis(False, word="swap-ab", since=LATER, features=whole_step)
    #: Whether an intermediate is its own signal: its readers poll the elements. For wgmma.
    in_band: bool = axis(False, word="in-band", since=LATER)
    #: How finished tiles are stored. For wgmma.
    epilogue: Epilogue = axis(Epilogue.DIRECT, word="{}-epilogue", since=LATER)
    #: CTAs per cluster along m and along n, 1, 2 or 4; together they compute one task's tile. For wgmma.
    cluster_m: int = axis(1, since=LATER, features=log2)
    cluster_n: int = axis(1, since=LATER, features=log2)
    #: CTAs per cluster that split a tile's k-steps, 1, 2 or 4: each adds up and stores a share of the tile. For wgmma.
    cluster_k: int = axis(1, since=LATER, features=log2)
    #: KiB of shared memory for the sums that the CTAs which split a tile's K send each other: with more room, fewer
    #: sums wait until earlier ones were added. For wgmma.
    sum_kib: int = axis(
        24,
        values=(24, 32, 48, 64),
        word="sums{}k",
        sentence="CTAs that split a tile's K dimension exchange partial sums through a {}-KiB buffer.",
        since=LATER,
        features=log2,
        values_in_words="24, 32, 48 or 64",
        meaning="KiB of shared memory for [exchanged partial sums](#ctas-that-split-k)",
    )
    #: CTAs that a launch places side by side though each works alone, 1 or 2: requests of neighbours for the same
    #: weights are merged. For wgmma.
    neighbours: int = axis(
        1,
        values=(1, 2),
        near=(1, 2),
        word="neighbours{}",
        sentence="Every two CTAs are placed side by side.",
        since=LATER,
        features=log2,
        values_in_words="1 or 2",
        meaning="CTAs that a launch places on [neighbouring SMs](#neighbours), although each works alone",
    )
    #: Which part adds up the parts of a tile, if some op is split. For wgmma.
    part_sums: PartSums = axis(
        PartSums.LAST,
        near=tuple(PartSums),
        word="{}-sums",
        sentence="Each part of a tile adds up a share of it.",
        since=LATER,
        values_in_words="`last`; `wgmma` also `scattered`",
        meaning="which parts of a split tile [add up the sums](#scattered-sums)",
    )
    #: CTAs that should fit on an SM at once, 1 or 2: the compiler is limited to their share of the registers.
    resident_ctas: int = axis(
        1,
        word="resident{}",
        since=LATER,
        features=lambda value: (value,),
        values_in_words="1 or 2",
        meaning=(
            "[CTAs that should fit on an SM](#two-ctas-on-an-sm); with 2, the compiler may use half as many registers"
        ),
    )
    #: L2 hint for weights.
    weight_hint: CacheHint = axis(
        CacheHint.DEFAULT,
        word="weights-{}",
        since=LATER,
        values_in_words="see [below](#cache-hints)",
        meaning="L2 cache hint of weight loads",
    )
    #: L2 hint for stores and loads of an op's output that another op reads.
    intermediate_hint: CacheHint = axis(
        CacheHint.DEFAULT,
        word="intermediate-{}",
        since=LATER,
        values_in_words="`default`, `normal` or `evict_last`",
        meaning="L2 cache hint of stores and loads of an intermediate",
    )


@dataclass(frozen=True, kw_only=True)
class Tiling(KernelConfig):
    """Everything that is fixed when the kernel is compiled, collected from two of a schedule's levels."""

    #: One tile per op, in the workload's order.
    tiles: tuple[Tile, ...]
    #: Parts per op into which the k-steps of each of its tiles are split, >= 1 each; empty if no op is split.
    split_k: tuple[int, ...] = axis((), since=LATER)
    #: For each op, the choices that only its kind knows, None if it has none; empty if no op's kind has any.
    of_kinds: tuple[Any, ...] = field(default=(), metadata=NO_AXIS)

    @property
    def num_threads(self) -> int:
        """Threads per CTA: those that multiply, and for wgmma also those that copy and those that read in band."""
        beside = COPYING_THREADS + READING_THREADS * self.in_band if self.engine is Engine.WGMMA else 0
        return 32 * self.num_warps + beside

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster; a plan counts a cluster as one CTA."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def placed_ctas(self) -> int:
        """CTAs that the hardware places together: a cluster, or neighbours."""
        return self.cluster_size * self.neighbours

    @property
    def cluster(self) -> tuple[int, ...]:
        """CTAs per cluster along m and n, and along k if there is more than one."""
        return (self.cluster_m, self.cluster_n) + ((self.cluster_k,) if self.cluster_k != 1 else ())

    @property
    def cta_tiles(self) -> tuple[Tile, ...]:
        """The tile of each op that one CTA multiplies, with all of its k-steps or every `cluster_k`-th."""
        if self.cluster_m == self.cluster_n == 1:
            return self.tiles
        return _sliced(self.tiles, self.cluster_m, self.cluster_n)

    @property
    def stages_ahead(self) -> int:
        """Stages that can be filled with a task's weights before its inputs arrive."""
        return self.num_stages if self.engine is Engine.WGMMA else self.num_stages - 1

    def num_parts(self, op_index: int) -> int:
        """Parts of a tile of the op: each is a separate task."""
        return self.split_k[op_index] if self.split_k else 1

    def but(self, **fields: Any) -> Tiling:
        """The same tiling with other values of some fields. Faster than `replace`, which sets frozen attributes one by
        one: a search does it ten thousand times."""
        changed = object.__new__(type(self))
        vars(changed).update(vars(self), **fields)
        return changed

    def of_kind(self, op_index: int) -> Any:
        """The choices that only the op's kind knows; None if there are none, or none were made."""
        return self.of_kinds[op_index] if self.of_kinds else None

    def __str__(self) -> str:
        tiles = "+".join(str(tile) for tile in self.tiles)
        split = f" split{'+'.join(map(str, self.split_k))}" if self.split_k else ""
        cluster = f" cluster{'x'.join(map(str, self.cluster))}" if self.cluster_size > 1 else ""
        names = tuple(axes_of(KernelConfig))
        first = names.index("cluster_m")
        own = "".join(words_of(one) for one in self.of_kinds if one is not None)
        return (
            f"{self.engine} {tiles}{words_of(self, names[:first])}{split}{cluster}{words_of(self, names[first:])}{own}"
        )


@lru_cache(maxsize=4096)
def _sliced(tiles: tuple[Tile, ...], cluster_m: int, cluster_n: int) -> tuple[Tile, ...]:
    """The tiles of one CTA. Cached, since judging a tiling calls this ten times, and a space has few distinct tiles."""
    return tuple(Tile(m=tile.m // cluster_m, n=tile.n // cluster_n, k=tile.k) for tile in tiles)
