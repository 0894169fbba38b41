"""The references for a checked launch of a workload with launch ops.

The ops in order are cut before each launch op that reads an earlier op's output. The references of such a segment start
from these rows as the launch wrote them, after they were checked themselves: so a launch op's rounding errors of them
need no bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tuner.core.problem.ops.op import Op
from tuner.core.problem.workload import Workload

from .op_data import OpData
from .outputs import GuardedOutput
from .reference import Reference

Array = Any  # a cupy.ndarray; CuPy has no type annotations


class CheckedData(Protocol):
    """The tensors of one problem; each check has its own inputs."""

    workload: Workload
    #: The data of each launch op.
    own: tuple[OpData, ...]
    #: The outputs by slot and op.
    outputs: list[dict[str, GuardedOutput]]
    #: By check and name, the references that depend only on the inputs.
    references: list[dict[str, Reference]]

    def written(self, name: str, seed_index: int) -> Array:
        """The bits that a checked launch has written."""

    def inputs_of_check(self, seed_index: int) -> dict[str, Array]:
        """The inputs by name."""

    def references_of(
        self, inputs: dict[str, Array], known: dict[str, Reference], op_indices: range
    ) -> dict[str, Reference]:
        """`known`, with the references of the tile ops `op_indices` added."""


class Segments:
    """Segments of one problem."""

    def __init__(self, data: CheckedData) -> None:
        self._data = data
        self._own = {one.op.name: one for one in data.own}
        self._ops: list[list[Op]] = [[]]
        for op in data.workload.ops:
            if op.name in self._own and self._own[op.name].read_from_ops:
                self._ops.append([])
            self._ops[-1].append(op)
        #: By check and segment after the first: the rows that it starts from, and its references.
        self._kept: dict[tuple[int, int], tuple[list[Array], dict[str, Reference]]] = {}

    def first(self, inputs: dict[str, Array]) -> dict[str, Reference]:
        """The references before the first such launch op, which depend only on the inputs."""
        return self._computed(inputs, {}, self._ops[0])

    def warm_up(self) -> None:
        """Computes unused references: CuPy then compiles now what a candidate's check would wait for."""
        for number in range(1, len(self._ops)):
            self._of(0, number)

    def behind(self, seed_index: int) -> Iterator[tuple[str, Reference]]:
        """The references of all others by name, segment by segment: each starts from what the launch has written before
        it.
        """
        for number in range(1, len(self._ops)):
            yield from self._of(seed_index, number).items()

    def _of(self, seed_index: int, number: int) -> dict[str, Reference]:
        """The references of a segment, computed once for all launches that write the same bits before it."""
        read = [name for own in self._starting(number) for name in own.read_from_ops]
        written, known = (
            [self._data.written(name, seed_index) for name in read],
            dict(self._data.references[seed_index]),
        )
        for before in range(1, number):
            bits, references = self._kept[seed_index, before]
            written, known = [*written, *bits], known | references
        kept = self._kept.get((seed_index, number))
        if kept is not None and all(bool((a == b).all()) for a, b in zip(kept[0], written, strict=True)):
            return kept[1]
        found = self._computed(self._data.inputs_of_check(seed_index), known, self._ops[number])
        self._kept[seed_index, number] = [bits.copy() for bits in written], found
        return found

    def _starting(self, number: int) -> list[OpData]:
        """The launch ops of a segment that start from written rows."""
        own = (self._own.get(op.name) for op in self._ops[number])
        return [one for one in own if one is not None and one.read_from_ops]

    def _computed(
        self, inputs: dict[str, Array], known: dict[str, Reference], ops: Sequence[Op]
    ) -> dict[str, Reference]:
        """The references of those ops, in order, given those that are known."""
        found, outputs = dict(known), self._data.outputs[0]
        for op in ops:
            own = self._own.get(op.name)
            if own is not None:
                found |= own.references(inputs, {name: outputs[name].bits for name in own.read_from_ops})
                continue
            index = self._data.workload.op_index(op.name)
            assert index is not None, op.name
            found = self._data.references_of(inputs, found, range(index, index + 1))
        return {name: reference for name, reference in found.items() if name not in known}
