"""The shapes that decode attention is measured at, and what is tried at each."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.problem.attention import DecodeAttention
from tuner.workers.source.attention import AttentionTiling

#: Query heads, KV heads of each model's layer or shard.
MODELS = {"llama3-8b": (32, 8), "llama3-70b-tp8": (8, 1)}
BATCHES = (1, 16, 64)
CONTEXTS = (512, 2048, 8192)
#: Bytes a second that the floor counts with.
BANDWIDTH = 4.4e12
_HEAD_DIM = 128
#: Shared memory of a CTA of sm_90.
_MOST_SMEM_BYTES = 232_448


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel with one plan."""

    tiling: AttentionTiling
    #: Tokens of a chunk.
    chunk_tokens: int
    #: Whether each CTA takes neighbours.
    contiguous: bool = False
    #: Whether a CTA's first tiles are requested before a length is known.
    speculative: bool = True
    #: Whether a launch may begin while the one before it ends.
    programmatic: bool = False

    def __str__(self) -> str:
        tiling = self.tiling
        flags = [name for name in ("contiguous", "programmatic") if getattr(self, name)]
        flags += [] if self.speculative else ["waits for lengths"]
        ring = f"tile {tiling.tile_tokens} x {tiling.num_stages}"
        return " ".join([f"chunk {self.chunk_tokens}, {ring}, warps {tiling.math_warps}", *flags])


def shapes() -> list[tuple[str, DecodeAttention]]:
    """Every row: the model, and its attention at a batch and a context."""
    return [
        (
            model,
            DecodeAttention(
                sequences=batch,
                kv_heads=kv_heads,
                query_heads=heads // kv_heads,
                head_dim=_HEAD_DIM,
                max_length=context,
            ),
        )
        for model, (heads, kv_heads) in MODELS.items()
        for batch in BATCHES
        for context in CONTEXTS
    ]


def tiling_of(
    tile_tokens: int, *, warps: int = 8, stages: int = 16, head_dim: int = _HEAD_DIM, columns: int = 8
) -> AttentionTiling:
    """With as many stages as fit, up to `stages`."""
    teams = warps // (tile_tokens // 16)
    for num_stages in range(stages // teams * teams, 0, -teams):
        tiling = AttentionTiling(
            head_dim=head_dim, columns=columns, tile_tokens=tile_tokens, num_stages=num_stages, math_warps=warps
        )
        if tiling.smem_bytes <= _MOST_SMEM_BYTES:
            return tiling
    raise ValueError(f"no ring of tiles of {tile_tokens} tokens fits")


def variants(op: DecodeAttention, num_sms: int) -> list[Variant]:
    """Around even shares of one wave: chunk lengths, tiles, warps, order, speculation, programmatic launches."""
    pairs = op.sequences * op.kv_heads
    even = 16
    while even < op.max_length and pairs * -(-op.max_length // even) > num_sms:
        even *= 2
    chunks = [chunk for chunk in (even // 4, even // 2, even, 2 * even, 4 * even) if 16 <= chunk <= op.max_length]
    tile = min(64, even)
    found = [Variant(tiling=tiling_of(min(64, chunk)), chunk_tokens=chunk) for chunk in chunks]
    found += [
        Variant(tiling=tiling_of(min(64, chunk)), chunk_tokens=chunk, programmatic=True) for chunk in (even, even // 2)
    ]
    found += [
        Variant(tiling=tiling_of(size, warps=warps), chunk_tokens=even, programmatic=True)
        for size, warps in ((16, 8), (32, 8), (128, 8), (32, 4), (tile, 4))
        if size <= even and size <= 16 * warps and (size, warps) != (tile, 8)
    ]
    found.append(Variant(tiling=tiling_of(tile, stages=4), chunk_tokens=even, programmatic=True))
    found.append(Variant(tiling=tiling_of(tile), chunk_tokens=even, programmatic=True, speculative=False))
    if pairs * -(-op.max_length // even) > num_sms:
        found.append(Variant(tiling=tiling_of(tile), chunk_tokens=even, programmatic=True, contiguous=True))
    if even // 4 >= 16:
        found.append(
            Variant(tiling=tiling_of(min(64, even // 4)), chunk_tokens=even // 4, programmatic=True, contiguous=True)
        )
    return [v for v in dict.fromkeys(found) if v.chunk_tokens >= 16]
