"""The shapes that decode attention is measured at, and what is tried at each."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tests.support.presets import attention_pair
from tuner.core.problem.gpu import ASKED_CLUSTERS, Gpu
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.schedule import AttentionEngine, AttentionSchedule, AttentionTiling
from tuner.ops.attention.search.policies import policy_schedules
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm, form_for
from tuner.ops.attention.shapes.shape import DecodeAttention

#: Query heads, KV heads of each model's layer or shard.
MODELS = {"llama3-8b": (32, 8), "llama3-70b-tp8": (8, 1)}
BATCHES = (1, 16, 64)
CONTEXTS = (512, 2048, 8192)
#: Bytes a second that an H200's floor counts with; another card's are measured.
BANDWIDTH = 4.4e12
_HEAD_DIM = 128
#: Shared memory of a CTA of sm_90.
_MOST_SMEM_BYTES = 232_448
#: Of lengths that differ: clusters, and spans of the longest context, which a launch assigns.
_LENGTH_SPANS = ((2, 1), (1, 2), (1, 8), (2, 2), (2, 4), (1, 4), (2, 7))
#: And tokens of a tile, warps that multiply, stages.
_LENGTH_RINGS = ((64, 4, 3), (64, 8, 16), (64, 4, 2), (64, 8, 4), (32, 8, 16), (32, 4, 16), (16, 8, 16))
#: What `tiling_of` is told of a variant.
_OF_TILING = ("warps", "stages", "finish_warps", "parts_at_once")


#: CTAs of a cluster.
_CLUSTERS = (1, 2, *ASKED_CLUSTERS)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel with one plan."""

    tiling: AttentionTiling
    #: Tokens of a span.
    span_tokens: int
    #: Whether each cluster takes neighbours.
    contiguous: bool = False
    #: Whether a CTA's first tiles are requested before a length is known.
    speculative: bool = False
    #: Whether a launch assigns the tasks that its lengths leave.
    by_length: bool = False
    #: Whether a launch may begin while the one before it ends.
    programmatic: bool = True
    #: That a miss in the L2 brings of keys and values: 128, a line of the ring, or 256.
    promotion_bytes: int = 128

    def __str__(self) -> str:
        tiling = self.tiling
        flags = [] if tiling.engine is AttentionEngine.TMA else [str(tiling.engine)]
        flags += [name for name in ("contiguous", "speculative", "by_length") if getattr(self, name)]
        flags += [] if self.programmatic else ["plain"]
        flags += [] if self.promotion_bytes == 128 else [f"misses of {self.promotion_bytes} bytes"]
        ring = f"tile {tiling.tile_tokens} x {tiling.num_stages}"
        warps = f"warps {tiling.math_warps}+{tiling.finish_warps}"
        parts = f"{tiling.parts_at_once} parts at once"
        return ", ".join([f"cluster {tiling.cluster}", f"span {self.span_tokens}", ring, warps, parts, *flags])


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model's attention at lengths that its sequences have."""

    model: str
    op: DecodeAttention
    lengths: tuple[int, ...]
    #: Of our cache; 0: it is contiguous, as the library's is in any case.
    page_tokens: int = 0

    @property
    def name(self) -> str:
        """As ``--row`` says it."""
        context = self.op.max_length if set(self.lengths) == {self.op.max_length} else f"1-{self.op.max_length}"
        pages = f"/pages{self.page_tokens}" if self.page_tokens else ""
        return f"{self.model}/{self.op.sequences}/{context}{pages}"

    @property
    def form(self) -> AttentionForm:
        """With as many pages as the lengths need."""
        if not self.page_tokens:
            return PLAIN
        num_pages = sum(-(-length // self.page_tokens) for length in self.lengths)
        return AttentionForm(paged=PagedCache(num_pages=num_pages, page_tokens=self.page_tokens))

    @property
    def kv_bytes(self) -> int:
        """Keys and values that a launch has to read."""
        return self.op.cache_bytes(sum(self.lengths))


def rows() -> list[Row]:
    """Every row: contexts as long as can be, then lengths that differ, and these with pages of 16 tokens."""
    found = []
    for model, (heads, kv_heads) in MODELS.items():
        for batch, context, is_ragged in [*((b, c, False) for b in BATCHES for c in CONTEXTS), (16, 4096, True)]:
            op = DecodeAttention(
                sequences=batch,
                kv_heads=kv_heads,
                query_heads=heads // kv_heads,
                head_dim=_HEAD_DIM,
                max_length=context,
            )
            drawn = random.Random(0)
            lengths = tuple(drawn.randint(1, context) if is_ragged else context for _ in range(batch))
            found.append(Row(model=model, op=op, lengths=lengths))
        found.append(replace(found[-1], page_tokens=16))
    return found


def tiling_of(
    tile_tokens: int,
    *,
    warps: int = 8,
    stages: int = 16,
    head_dim: int = _HEAD_DIM,
    queries: int = 4,
    finish_warps: int = 4,
    cluster: int = 1,
    parts_at_once: int = 16,
) -> AttentionTiling:
    """With as many stages as fit, up to `stages`. `queries` share a KV head, of all new tokens."""
    teams = warps // (tile_tokens // 16)
    columns = 8 if queries <= 8 else 16
    for num_stages in range(stages // teams * teams, 0, -teams):
        tiling = AttentionTiling(
            head_dim=head_dim,
            columns=columns,
            tile_tokens=tile_tokens,
            num_stages=num_stages,
            math_warps=warps,
            live_columns=min(columns, queries),
            finish_warps=finish_warps,
            cluster=cluster,
            parts_at_once=parts_at_once,
        )
        if tiling.smem_bytes <= _MOST_SMEM_BYTES:
            return tiling
    raise ValueError(f"no ring of tiles of {tile_tokens} tokens fits")


def variants(row: Row, gpu: Gpu) -> list[Variant]:
    """Clusters of each size with one span or as many as are resident; around the best of one CTA a task, the rest."""
    op = row.op
    pairs = op.sequences * op.kv_heads

    def variant(cluster: int, spans: int, tile: int = 64, **changes: Any) -> Variant | None:
        of_tiling = {name: changes.pop(name) for name in _OF_TILING if name in changes}
        while tile > 16 and cluster * tile * spans > max(op.max_length, 16 * cluster * spans):
            tile //= 2
        share = cluster * tile
        if (spans - 1) * share >= op.max_length:
            return None
        span_tokens = -(-op.max_length // (spans * share)) * share
        warps = max(of_tiling.pop("warps", 8), tile // 16)
        tiling = tiling_of(tile, warps=warps, queries=op.columns, cluster=cluster, **of_tiling)
        return Variant(tiling=tiling, span_tokens=span_tokens, **changes)

    found: list[Variant | None] = []
    if set(row.lengths) != {op.max_length}:
        found.append(variant(*_LENGTH_SPANS[0], by_length=True, programmatic=False))
        for (cluster, spans), (tile, warps, stages) in product(_LENGTH_SPANS, _LENGTH_RINGS):
            found.append(variant(cluster, spans, tile, by_length=True, warps=warps, stages=stages))
    for cluster in _CLUSTERS:
        resident = gpu.num_clusters(cluster)
        most = max(1, resident // pairs)
        for spans in sorted({1, min(most, 4), most}):
            found += [variant(cluster, spans), variant(cluster, spans, tile=32)]
        found.append(variant(cluster, most, promotion_bytes=256))
        if cluster > 1 and pairs > resident:
            found.append(variant(cluster, 1, contiguous=True))
            continue
        found += [variant(cluster, most, programmatic=False), variant(cluster, most, finish_warps=0)]
        found += [variant(cluster, most, speculative=True), variant(cluster, 2 * most)]
        if pairs > resident:
            found.append(variant(cluster, 1, contiguous=True))
    most = max(1, gpu.num_sms // pairs)
    found += [variant(1, most, parts_at_once=8), variant(1, 2 * most, finish_warps=0), variant(1, most, tile=16)]
    found += [variant(1, most, tile=128), variant(1, most, warps=4), variant(1, 2 * most, contiguous=True)]
    return list(dict.fromkeys(fitting(row, v) for v in found if v is not None))


def by_engine(found: Iterable[Variant], engine: AttentionEngine) -> list[Variant]:
    """Those without clusters, by an engine; none that differs in what the copy engine alone does."""
    plain = (one for one in found if one.tiling.cluster == 1 and one.promotion_bytes == 128)
    return [replace(one, tiling=replace(one.tiling, engine=engine)) for one in plain]


def policy_variants(row: Row, gpu: Gpu) -> dict[str, Variant]:
    """Published ways to share the work, by name, each by a kernel that takes 64 tokens at a time."""
    attention = AttentionOp(name="attention", shape=row.op, form=form_for(row.op, page_tokens=row.page_tokens or None))
    tiling = tiling_of(64, queries=row.op.columns)
    kernel = AttentionSchedule(
        tile_tokens=64, num_stages=tiling.num_stages, math_warps=tiling.math_warps, span_tokens=64
    )
    return {
        name: fitting(
            row, Variant(tiling=tiling, span_tokens=one.span_tokens, contiguous=one.contiguous, speculative=True)
        )
        for name, one in policy_schedules(attention_pair(row.op, d_out=None), gpu, attention, kernel)
    }


def fitting(row: Row, variant: Variant) -> Variant:
    """Of a paged cache, and of tasks that lengths assign, nothing can be requested before a length is known."""
    return replace(variant, speculative=variant.speculative and not row.page_tokens and not variant.by_length)
