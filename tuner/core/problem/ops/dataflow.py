"""Who reads which tensor: every op reads inputs and outputs of earlier ops, in the shape that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tuner.errors import InvalidInput

Shape = tuple[int, int]


class Read(NamedTuple):
    """A tensor that an op names."""

    #: The op's field that names it.
    field: str
    tensor: str
    #: Rows and columns, as the op reads it.
    shape: Shape
    #: Of another shape: the field that is at fault, if it is another; what the op does with the tensor, why that
    #: cannot be, and what would be right.
    blame: str = ""
    verb: str = "reads"
    why: str = ""
    remedy: str = "give it a tensor of the shape that it reads"


class Flow(NamedTuple):
    """An op's name, the shape of its output, and what it reads."""

    name: str
    shape: Shape
    reads: tuple[Read, ...]
    #: Names of tensors that are its own.
    operands: tuple[str, ...] = ()
    #: What it writes beside its output.
    made: tuple[tuple[str, Shape], ...] = ()
    #: Names of tensors that it changes in place.
    changed: tuple[str, ...] = ()


def check_names(flows: Sequence[Flow]) -> None:
    """A tensor has one name, and a name one tensor: an op's output, an input, or an operand of one op.

    Raises:
        InvalidInput: two ops have one name, or a tensor has that of an operand.
    """
    names = [name for flow in flows for name in (flow.name, *(name for name, _ in flow.made))]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput("ops", f"the name {double!r} is used twice", "give each op its own name")
    operands = {operand: operand.rpartition(".")[0] for flow in flows for operand in flow.operands}
    for name in (*names, *(read.tensor for flow in flows for read in flow.reads)):
        if name in operands:
            problem = f"{name} is the name of an operand of {operands[name]}"
            raise InvalidInput("ops", problem, "give the op, or the input, another name")
    for flow in flows:
        others = {read.tensor for other in flows if other is not flow for read in other.reads} | set(names)
        if shared := next((name for name in flow.changed if name in others), None):
            problem = f"{flow.name} changes {shared} in place, and another op writes or reads it"
            raise InvalidInput("ops", problem, "give it a tensor that no other op names")


def check_dataflow(flows: Sequence[Flow]) -> None:
    """Ops in topological order, none of which has the name of another.

    Raises:
        InvalidInput: an op reads itself or a later one, ops read each other in a cycle, or shapes do not meet.
    """
    names = {name for flow in flows for name in (flow.name, *(name for name, _ in flow.made))}
    known: dict[str, tuple[str, Shape]] = {}  # tensor -> who gave it its shape, and that
    written: set[str] = set()
    for flow in flows:
        for read in flow.reads:
            if read.tensor in names - written:
                raise _out_of_order(flows, flow, read)
            first, shape = known.setdefault(read.tensor, (flow.name, read.shape))
            if shape != read.shape:
                raise _misfit(flow, read, shape, "" if read.tensor in written else first)
        for name, shape in ((flow.name, flow.shape), *flow.made):
            written.add(name)
            known[name] = flow.name, shape


def _out_of_order(flows: Sequence[Flow], flow: Flow, read: Read) -> InvalidInput:
    """What an op reads depends on it in turn, or is merely written too late."""
    remedy = "list the ops in topological order: each after those that it reads"
    if read.tensor in (flow.name, *dict(flow.made)):
        return InvalidInput("ops", f"{flow.name} reads {read.tensor}, its own output", remedy)
    written = [(name, other.reads) for other in flows for name in (other.name, *dict(other.made))]
    reads_of = {name: [one.tensor for one in reads] for name, reads in written}
    path = _path(reads_of, read.tensor, flow.name)
    if path:
        circle = ", which reads ".join([*path, path[0]])
        return InvalidInput("ops", f"a cycle: {circle}", "break it: let one of them read an input")
    what = {"source": "reads", "queries": "reads", "residual_source": "adds"}.get(read.field, "norms")
    return InvalidInput("ops", f"{flow.name} {what} {read.tensor}, which a later op writes", remedy)


def _path(reads_of: dict[str, list[str]], start: str, end: str) -> list[str]:
    """Ops from `end` on, each of which reads the next one, around to `end` by way of `start`; none where there is no
    way from `start` to `end`."""
    came_from, todo = {start: end}, [start]
    while todo:
        op = todo.pop()
        for tensor in reads_of[op]:
            if tensor == end:
                path = [op]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return [end, *reversed(path)]
            if tensor in reads_of and tensor not in came_from:
                came_from[tensor] = op
                todo.append(tensor)
    return []


def _misfit(flow: Flow, read: Read, shape: Shape, first: str) -> InvalidInput:
    """A tensor of another shape than the op says; `first` is the op that gave an input its shape."""
    (rows, columns), field = read.shape, f"{flow.name}.{read.blame or read.field}"
    if first:
        problem = f"reads {read.tensor} as [{rows}, {columns}], but {first} reads it as [{shape[0]}, {shape[1]}]"
        return InvalidInput(field, problem, "give each input its own name")
    shapes = f"{read.tensor} as [{rows}, {columns}], but it is [{shape[0]}, {shape[1]}]"
    return InvalidInput(field, f"{read.verb} {shapes}{f': {read.why}' if read.why else ''}", read.remedy)
