"""Which op reads which tensor: every op reads inputs and outputs of earlier ops, with matching shapes."""

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
    #: Rows and columns, as seen by the op.
    shape: Shape
    #: For a wrong shape: the field at fault, if it is a different one; what the op does with the tensor, why that is
    #: impossible, and what would be valid.
    blame: str = ""
    verb: str = "reads"
    why: str = ""
    remedy: str = "use a tensor of the shape that it reads"


class Flow(NamedTuple):
    """An op's name, the shape of its output, and the tensors that it reads."""

    name: str
    shape: Shape
    reads: tuple[Read, ...]
    #: Names of the op's own tensors.
    operands: tuple[str, ...] = ()
    #: Its outputs besides the main one.
    made: tuple[tuple[str, Shape], ...] = ()
    #: Names of tensors that it changes in place.
    changed: tuple[str, ...] = ()


def check_names(flows: Sequence[Flow]) -> None:
    """Checks that names are unique: each belongs to an op's output, an input, or an operand of one op.

    Raises:
        InvalidInput: two ops have the same name, or a tensor has the name of an operand.
    """
    names = [name for flow in flows for name in (flow.name, *(name for name, _ in flow.made))]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput("ops", f"the name {double!r} is used twice", "use a different name for each op")
    operands = {operand: operand.rpartition(".")[0] for flow in flows for operand in flow.operands}
    for name in (*names, *(read.tensor for flow in flows for read in flow.reads)):
        if name in operands:
            problem = f"{name} is already an operand of {operands[name]}"
            raise InvalidInput("ops", problem, "rename the op, or the input; others read outputs of the element type")
    for flow in flows:
        others = {read.tensor for other in flows if other is not flow for read in other.reads} | set(names)
        if shared := next((name for name in flow.changed if name in others), None):
            problem = f"{flow.name} changes {shared} in place, and another op writes or reads it"
            raise InvalidInput("ops", problem, "use a tensor that no other op names")


def check_dataflow(flows: Sequence[Flow]) -> None:
    """Checks that ops are in topological order and have unique names.

    Raises:
        InvalidInput: an op reads itself or a later one, ops read each other in a cycle, or shapes do not match.
    """
    names = {name for flow in flows for name in (flow.name, *(name for name, _ in flow.made))}
    known: dict[str, tuple[str, Shape]] = {}  # tensor -> the op that determined its shape, and the shape
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
    """The error for an op that reads something that depends on it, or that is written too late."""
    remedy = "list the ops in topological order: each after the ops that it reads"
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
    """A cycle of ops from `end` through `start` back to `end`, each reading the next one; empty if `start` does not
    lead to `end`."""
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
    """The error for a tensor whose shape the op does not expect; `first` is the op that determined an input's shape."""
    (rows, columns), field = read.shape, f"{flow.name}.{read.blame or read.field}"
    if first:
        problem = f"reads {read.tensor} as [{rows}, {columns}], but {first} reads it as [{shape[0]}, {shape[1]}]"
        return InvalidInput(field, problem, "use a different name for each input")
    shapes = f"{read.tensor} as [{rows}, {columns}], but it is [{shape[0]}, {shape[1]}]"
    return InvalidInput(field, f"{read.verb} {shapes}{f': {read.why}' if read.why else ''}", read.remedy)
