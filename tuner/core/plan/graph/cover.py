"""Waits for late reads that can be left out, since other waits imply them.

A tile is complete only after everything that it read in its steps was complete. So a task that waits for a tile also
waits for the inputs of that tile's steps, and recursively for theirs. The boxes determine which tiles these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.boxes import Ints, TileSpace
from tuner.core.plan.graph.edges import Edge, edges_between
from tuner.core.plan.graph.needs import Needs, factors
from tuner.core.plan.table.distinct import distinct_rows

#: [lists, tiles / 8] one bit for each tile of a producer.
Bits = npt.NDArray[np.uint8]


class Waits(StrEnum):
    """Which tasks need a wait for what they read after their last step."""

    #: No task: all waits are implied by other waits.
    NEVER = "never"
    #: Parts of tiles: a whole tile waits for all inputs before its steps, but a part only for those of its own steps.
    PARTS = "parts"
    #: All tasks.
    ALWAYS = "always"


@lru_cache(maxsize=512)
def waits_for(edge: Edge, op_indices: tuple[int, ...], spaces: tuple[TileSpace, ...]) -> Waits:
    """Which tasks of the launch of these ops need a wait for the late reads of `edge`."""
    streams = [one for one in edges_between(op_indices, spaces) if not one.is_late and one.producer != one.consumer]
    mine = [one for one in streams if one.consumer == edge.consumer]
    covers = []
    for one in (one for one in mine if one.producer != edge.producer):
        if (further := _reach(one.producer, edge.producer, streams)) is not None:
            covers.append(_through(one, *further))
    if covers and _is_within(edge.needs_of_tiles(), covers):
        return Waits.NEVER
    covers += [_of_tiles(one.needs_of_tiles(), edge.writer.num_tiles) for one in mine if _is_direct(one, edge)]
    return Waits.PARTS if covers and _is_within(edge.needs_of_tiles(), covers) else Waits.ALWAYS


def _is_direct(stream: Edge, edge: Edge) -> bool:
    """Whether the steps of `stream` already wait for the same tiles of that producer."""
    return stream.producer == edge.producer and not stream.read.in_band


def _of_tiles(needs: Needs, num_tiles: int) -> tuple[Ints, Bits]:
    """[reader's tiles] the number of each tile's list, and the tiles of each list as bits."""
    flags = np.zeros((needs.num_lists, num_tiles), dtype=np.bool_)
    flags[np.repeat(np.arange(needs.num_lists), np.diff(needs.begin)), needs.tiles] = True
    return needs.of, np.packbits(flags, axis=1)


def _reach(op: int, producer: int, streams: Sequence[Edge]) -> tuple[Ints, Bits] | None:
    """[tiles of the op] the number of each tile's list, and [lists] the producer's tiles that are complete once a tile
    with that list is; None if the op reads none of them, even indirectly."""
    found = []
    for edge in (edge for edge in streams if edge.consumer == op):
        if edge.producer == producer:
            found.append(_of_tiles(edge.needs_of_tiles(), edge.writer.num_tiles))
        elif (further := _reach(edge.producer, producer, streams)) is not None:
            needs = edge.needs_of_tiles()
            found.append((needs.of, _united(needs, *further)))
    if len(found) < 2:
        return found[0] if found else None
    lists = distinct_rows(np.column_stack([of for of, _ in found]))
    bits = [bits[column] for (_, bits), column in zip(found, lists.rows.T, strict=True)]
    return lists.of, np.bitwise_or.reduce(bits)


def _united(needs: Needs, list_of: Ints, bits: Bits) -> Bits:
    """[lists of needs] the union of what their tiles imply."""
    list_number = np.repeat(np.arange(needs.num_lists, dtype=np.int64), np.diff(needs.begin))
    pairs = distinct_rows(np.column_stack((list_number, list_of[needs.tiles]))).rows
    united = np.zeros((needs.num_lists, bits.shape[1]), dtype=np.uint8)
    filled, begin = np.unique(pairs[:, 0], return_index=True)
    if len(filled):
        united[filled] = np.bitwise_or.reduceat(bits[pairs[:, 1]], begin, axis=0)
    return united


def _through(stream: Edge, list_of: Ints, bits: Bits) -> tuple[Ints, Bits]:
    """What waits for the reads in steps imply, given what each of the tiles read implies. For a tile in parts:
    what every step implies on its own, since a part has at least one step."""
    needs, space = stream.needs_of_tiles(), stream.reader
    if space.num_parts == 1:
        return needs.of, _united(needs, list_of, bits)
    # If boxes are separable, tiles with one list also have one in each step.
    is_separable = factors(stream.read, stream.writer) is not None
    tiles, of = np.unique(needs.of, return_index=True)[1], needs.of
    if not is_separable:
        tiles = of = np.arange(space.num_tiles, dtype=np.int64)
    steps = np.zeros((len(tiles) * space.num_steps, 3), dtype=np.int64)
    steps[:, 0], steps[:, 1:] = np.tile(np.arange(space.num_steps), len(tiles)), 1
    by_step = stream.needs(tuple(np.repeat(axis[tiles], space.num_steps) for axis in space.all_places), steps)
    united = _united(by_step, list_of, bits)
    number = by_step.of.reshape(len(tiles), space.num_steps)
    each = [np.bitwise_and.reduce(united[np.unique(mine)]) for mine in number]
    return of, np.array(each, dtype=np.uint8).reshape(len(tiles), bits.shape[1])


def _is_within(late: Needs, covers: Sequence[tuple[Ints, Bits]]) -> bool:
    """Whether each tile reads late only from tiles that its lists of waits imply."""
    lists = distinct_rows(np.column_stack((late.of, *(of for of, _ in covers)))).rows
    bits = np.bitwise_or.reduce([bits[column] for (_, bits), column in zip(covers, lists.T[1:], strict=True)])
    entries, of = late.gathered(lists[:, 0])
    tiles = late.tiles[entries]
    return bool((bits[of, tiles >> 3] >> (7 - (tiles & 7)).astype(np.uint8) & 1).all())
