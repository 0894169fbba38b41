"""Random ops without a kind, given only by their boxes: grids with any number of axes, halos, non-separable boxes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, Extent, TileSpace, along, whole
from tuner.core.plan.graph.tile_graph import TaskGraph


@dataclass(frozen=True, kw_only=True)
class BoxGraph(TaskGraph):
    """A launch of ops that are given by their boxes."""

    ops: tuple[TileSpace, ...]

    @cached_property
    def spaces(self) -> Mapping[int, TileSpace]:
        return dict(zip(self.op_indices, self.ops, strict=True))


def box_graph(*ops: TileSpace, strided: bool = False) -> BoxGraph:
    """A launch of `ops`, numbered consecutively."""
    return BoxGraph(op_indices=tuple(range(len(ops))), ops=ops, strided_parts=strided)


@dataclass(frozen=True)
class Written:
    """A tensor that some tiles write: their grid, their boxes, and the tensor's shape."""

    grid: tuple[int, ...]
    boxes: tuple[Box, ...]
    shape: tuple[int, ...]


@st.composite
def written(draw: st.DrawFn, tensor: str) -> Written:
    """Tiles that together write each element of a tensor once. Some are numbered by one coordinate, or backwards, or
    write two boxes."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    sides = [draw(st.integers(1, size)) for size in shape]
    counts = [-(-size // side) for size, side in zip(shape, sides, strict=True)]
    match draw(st.sampled_from(("plain", "permuted", "in a row", "backwards", "two boxes", "whole"))):
        case "permuted":
            order = draw(st.permutations(range(len(shape))))
            extents = [along(order.index(d), shape[d], sides[d]) for d in range(len(shape))]
            return Written(tuple(counts[d] for d in order), (Box(tensor=tensor, extents=tuple(extents)),), shape)
        case "in a row":
            number, coordinates = math.prod(counts), np.unravel_index(np.arange(math.prod(counts)), counts)
            extents = [
                Extent(axes=(0,), begin=at * side, end=np.minimum((at + 1) * side, size))
                for at, side, size in zip(coordinates, sides, shape, strict=True)
            ]
            return Written((number,), (Box(tensor=tensor, extents=tuple(extents)),), shape)
        case "backwards":
            plain = [along(axis, size, side) for axis, (size, side) in enumerate(zip(shape, sides, strict=True))]
            extents = [Extent(axes=one.axes, begin=one.begin[::-1].copy(), end=one.end[::-1].copy()) for one in plain]
            return Written(tuple(counts), (Box(tensor=tensor, extents=tuple(extents)),), shape)
        case "two boxes":
            plain = [along(axis, size, side) for axis, (size, side) in enumerate(zip(shape, sides, strict=True))]
            shape = (2 * shape[0], *shape[1:])
            behind = along(0, shape[0] // 2, sides[0], offset=shape[0] // 2)
            boxes = [Box(tensor=tensor, extents=(first, *plain[1:])) for first in (plain[0], behind)]
            return Written(tuple(counts), tuple(boxes), shape)
        case "whole":
            extents = [along(0, shape[0], sides[0]), *map(whole, shape[1:])]
            return Written((counts[0],), (Box(tensor=tensor, extents=tuple(extents)),), shape)
        case _:
            plain = [along(axis, size, side) for axis, (size, side) in enumerate(zip(shape, sides, strict=True))]
            return Written(tuple(counts), (Box(tensor=tensor, extents=tuple(plain)),), shape)


@st.composite
def reads_of(draw: st.DrawFn, tensor: str, shape: tuple[int, ...], grid: tuple[int, ...], num_steps: int) -> BoxRead:
    """A random box of a tensor, and a step, for each tile; some boxes are empty."""
    is_late = draw(st.booleans())
    sizes = {**dict(enumerate(grid)), STEP: num_steps}
    usable = [*range(len(grid)), *([] if is_late else [STEP])]
    extents = []
    for size in shape:
        axes = draw(st.lists(st.sampled_from(usable), max_size=2, unique=True)) if usable else []
        axes = sorted(axis for axis in axes if axis != STEP) + [axis for axis in axes if axis == STEP]
        form = tuple(sizes[axis] for axis in axes)
        if len(axes) == 1 and draw(st.booleans()):  # rising, with a halo
            side, halo = -(-size // form[0]), draw(st.integers(0, 2))
            begin = np.minimum(np.arange(form[0]) * side, size)
            extents.append(
                Extent(axes=tuple(axes), begin=np.maximum(begin - halo, 0), end=np.minimum(begin + side + halo, size))
            )
            continue
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        begin = rng.integers(0, size + 1, form)
        extents.append(Extent(axes=tuple(axes), begin=begin, end=np.minimum(begin + rng.integers(0, 4, form), size)))
    return BoxRead(box=Box(tensor=tensor, extents=tuple(extents)), is_late=is_late)


@st.composite
def box_graphs(draw: st.DrawFn) -> BoxGraph:
    """Two ops that write, one of which may read itself, and a third that reads both."""
    first, second = draw(written("a")), draw(written("b"))
    row_axes = st.integers(0, 2)
    steps = st.integers(1, 4)

    @st.composite
    def space(draw: st.DrawFn, name: str, made: Written, shapes: dict[str, tuple[int, ...]]) -> TileSpace:
        num_steps = draw(steps)
        names = draw(st.lists(st.sampled_from(sorted(shapes)), max_size=2)) if shapes else []
        return TileSpace(
            name=name,
            grid=made.grid,
            num_steps=num_steps,
            num_parts=draw(st.integers(1, num_steps)),
            writes=made.boxes,
            reads=tuple(draw(reads_of(name, shapes[name], made.grid, num_steps)) for name in names),
            row_axes=min(len(made.grid), draw(row_axes)),
        )

    shapes = {"a": first.shape, "b": second.shape}
    ops = (
        draw(space("a", first, {})),
        draw(space("b", second, shapes)),
        draw(space("c", draw(written("c")), shapes)),
    )
    return box_graph(*ops, strided=draw(st.booleans()))
