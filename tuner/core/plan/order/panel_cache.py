"""The contents of a small cache while tiles are processed: loads, evictions, and the traffic so far, by tile.

A tile (row, col) of a product reads a row panel of A and a column panel of W, each in pieces: one per k-step. A piece
is in the cache, or comes from memory and costs 1. With one k-step a piece is a whole panel. A second product, whose
inputs are the first one's tiles, reads them (H) and its own weights (V).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

Tile = tuple[int, int]


class CachePolicy(StrEnum):
    """Which piece is evicted when space is needed."""

    #: The least recently used.
    LRU = "lru"
    #: The oldest.
    FIFO = "fifo"
    #: The one whose next use is furthest away, which requires knowing the rest of the path. Source: Belady, "A study of
    #: replacement algorithms for a virtual-storage computer", IBM Systems J. 5(2), 1966.
    OPTIMAL = "optimal"


class Piece(NamedTuple):
    """What one k-step reads of an operand."""

    #: ``A`` or ``W`` of the first product, ``H`` or ``V`` of the second.
    operand: str
    #: Row or column panel.
    panel: int
    #: K-step.
    step: int


@dataclass(frozen=True, kw_only=True)
class CacheStep:
    """What one tile did to the cache."""

    #: Pieces that it read, in order.
    reads: tuple[Piece, ...]
    #: The pieces read that came from memory.
    loads: tuple[Piece, ...]
    #: Pieces that were evicted to make room for them.
    evicted: tuple[Piece, ...]
    #: Contents of the cache afterwards, with the next piece to be evicted first.
    held: tuple[Piece, ...]
    #: Loads up to and including this tile.
    total: int


def reads_of(op: int, tile: Tile, num_steps: int) -> tuple[Piece, ...]:
    """What a tile of the first or of the second product reads, k-step by k-step."""
    inputs, weights = ("A", "W") if op == 0 else ("H", "V")
    row, col = tile
    return tuple(piece for step in range(num_steps) for piece in (Piece(inputs, row, step), Piece(weights, col, step)))


def cache_steps(reads: Iterable[Sequence[Piece]], size: int, policy: CachePolicy = CachePolicy.LRU) -> list[CacheStep]:
    """What each tile does to a cache of `size` pieces, given the pieces that it reads."""
    tiles = [tuple(tile) for tile in reads]
    later = _next_uses(tiles) if policy is CachePolicy.OPTIMAL else None
    #: Piece -> its next use, for the optimal policy; pieces are in the order of last use, or of loading.
    held: dict[Piece, int] = {}
    steps, total, at = list[CacheStep](), 0, 0
    for tile in tiles:
        loads, evicted = list[Piece](), list[Piece]()
        for piece in tile:
            is_held = piece in held
            if not is_held:
                loads.append(piece)
                if len(held) == size:
                    gone = next(iter(held)) if later is None else max(held, key=held.__getitem__)
                    del held[gone]
                    evicted.append(gone)
            if not is_held or policy is not CachePolicy.FIFO:
                held.pop(piece, None)
                held[piece] = later[at] if later else 0
            at += 1
        total += len(loads)
        kept = tuple(held) if later is None else tuple(sorted(held, key=held.__getitem__, reverse=True))
        steps.append(CacheStep(reads=tile, loads=tuple(loads), evicted=tuple(evicted), held=kept, total=total))
    return steps


def traffic(path: Iterable[Tile], cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU) -> int:
    """Pieces that a path over any grid loads through a cache of `cache_panels`; with one k-step they are panels."""
    steps = cache_steps((reads_of(0, tile, num_steps) for tile in path), cache_panels, policy)
    return steps[-1].total if steps else 0


def _next_uses(tiles: Sequence[Sequence[Piece]]) -> list[int]:
    """[read] the index of the piece's next read, or one past the last if there is none."""
    reads = [piece for tile in tiles for piece in tile]
    found, following = [len(reads)] * len(reads), dict[Piece, int]()
    for at in range(len(reads) - 1, -1, -1):
        found[at] = following.get(reads[at], len(reads))
        following[reads[at]] = at
    return found
