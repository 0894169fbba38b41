"""Toy ops whose row counts are known at run time: products of experts, each with the tokens routed to it.

Tensors are [experts, tokens, channels]; expert `e` has `routed[e]` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.box_graphs import BoxGraph, box_graph
from tests.support.task_machine import Arithmetic, Memory, Tensor, left
from tuner.core.plan.graph.boxes import STEP, Bound, Box, BoxRead, RunTimeInput, TileSpace, along, whole

EXPERTS, TOKENS, CHANNELS = 3, 6, 4
ROUTED = RunTimeInput(name="routed", count=EXPERTS, least=0, most=TOKENS)


def bounds_of(*tensors: str, limit: RunTimeInput = ROUTED) -> tuple[Bound, ...]:
    """The bounds for tensors with a row per token."""
    return tuple(Bound(tensor=tensor, dimension=1, limit=limit, by=0) for tensor in tensors)


def product(name: str, source: str, *, tile: int = 2, parts: int = 1, limit: RunTimeInput = ROUTED) -> TileSpace:
    """Multiplies each expert's tokens by its weights; three coordinates, steps along the channels."""
    expert, tokens, channels = along(0, EXPERTS, 1), along(1, TOKENS, tile), along(2, CHANNELS, 4)
    steps = along(STEP, CHANNELS, 2)
    return TileSpace(
        name=name,
        grid=(EXPERTS, len(tokens.begin), len(channels.begin)),
        num_steps=len(steps.begin),
        num_parts=parts,
        writes=(Box(tensor=name, extents=(expert, tokens, channels)),),
        reads=(
            BoxRead(box=Box(tensor=source, extents=(expert, tokens, steps))),
            BoxRead(box=Box(tensor=f"{name}.weight", extents=(expert, channels, steps))),
        ),
        row_axes=2,
        bounds=bounds_of(name, source, limit=limit),
    )


def total(name: str, source: str, *, tile: int = 2, limit: RunTimeInput = ROUTED) -> TileSpace:
    """Sums each expert's tokens, in steps along the tokens, whose number is known at run time."""
    expert, channels, steps = along(0, EXPERTS, 1), along(1, CHANNELS, 4), along(STEP, TOKENS, tile)
    return TileSpace(
        name=name,
        grid=(EXPERTS, len(channels.begin)),
        num_steps=len(steps.begin),
        writes=(Box(tensor=name, extents=(expert, channels)),),
        reads=(BoxRead(box=Box(tensor=source, extents=(expert, steps, channels))),),
        bounds=bounds_of(source, limit=limit),
    )


def with_all_tokens(name: str, source: str, tokens: str) -> TileSpace:
    """An expert's tile of the source, and late reads of all its token rows."""
    expert, channels = along(0, EXPERTS, 1), along(1, CHANNELS, 4)
    return TileSpace(
        name=name,
        grid=(EXPERTS, len(channels.begin)),
        num_steps=1,
        writes=(Box(tensor=name, extents=(expert, channels)),),
        reads=(
            BoxRead(box=Box(tensor=source, extents=(expert, channels))),
            BoxRead(box=Box(tensor=tokens, extents=(expert, whole(TOKENS), channels)), is_late=True),
        ),
    )


def routed_graph(*, limit: RunTimeInput = ROUTED, parts: int = 1, tile: int = 2) -> BoxGraph:
    """Two consecutive products of experts, and the sums of the second one's rows."""
    return box_graph(
        product("a", "x", limit=limit, tile=tile),
        product("b", "a", parts=parts, limit=limit),
        total("t", "b", limit=limit),
    )


class ExpertTiles(Arithmetic):
    """The arithmetic on the remaining parts of their boxes."""

    def __init__(self, space: TileSpace, values: Mapping[str, Sequence[int]]) -> None:
        self._space, self._values = space, values

    def outputs(self) -> Memory:
        is_total = len(self._space.grid) == 2
        return {self._space.name: np.full((EXPERTS, CHANNELS) if is_total else (EXPERTS, TOKENS, CHANNELS), np.nan)}

    def _block(self, memory: Mapping[str, Tensor], box: Box, tile: tuple[int, ...], step: int) -> Tensor:
        return memory[box.tensor][left(self._space, box, tile, step, self._values)]

    def add(self, memory: Mapping[str, Tensor], tile: tuple[int, ...], step: int, sums: Any) -> Any:
        early = (one for one in self._space.reads if not one.is_late)
        read, *others = (self._block(memory, one.box, tile, step) for one in early)
        if read.ndim == 2:
            return read
        made = read[0] @ others[0][0].T if others else read[0].sum(axis=0)
        return made if sums is None else sums + made

    def store(self, memory: Memory, tile: tuple[int, ...], parts: list[Any]) -> None:
        late = (self._block(memory, one.box, tile, 0).sum(axis=1) for one in self._space.reads if one.is_late)
        made = sum((part for part in parts if part is not None), start=sum(late, start=0.0))
        self._block(memory, self._space.writes[0], tile, 0)[...] = made


def inputs(seed: int) -> Memory:
    """Tokens and weights; missing tokens are NaN."""
    rng = np.random.default_rng(seed)
    weights = {f"{name}.weight": rng.standard_normal((EXPERTS, CHANNELS, CHANNELS)) for name in "ab"}
    return {"x": rng.standard_normal((EXPERTS, TOKENS, CHANNELS)), **weights}


def answers(tensors: Mapping[str, Tensor], routed: Sequence[int]) -> Memory:
    """Every op's output; NaN where nothing should be written."""
    there = np.arange(TOKENS)[None, :, None] < np.array(routed)[:, None, None]
    known = dict(tensors)
    for name, source in (("a", "x"), ("b", "a")):
        known[name] = np.einsum("etk,enk->etn", known[source], known[f"{name}.weight"])
    known["t"] = np.where(there, known["b"], 0.0).sum(axis=1)
    made = {name: np.where(there, known[name], np.nan) for name in "ab"}
    return {**made, "t": known["t"]}
