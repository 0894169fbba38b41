"""Workloads some of whose ops can be one op: the file ``joined`` of a kind makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import kind_of, part_of
from tuner.core.problem.ops.op import LaunchOp, Op, Role, Tensor
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput


class Joins(Protocol):
    """The file ``joined`` of a kind."""

    def joined(self, ops: Sequence[Any], dtype: Dtype) -> LaunchOp | Sequence[Op]:
        """One op that computes what all `ops` compute, whatever their kinds are; or ops that together compute it, some
        of them unchanged. At least one of `ops` is of this kind.

        An op that computes several has the name of the last of these. Its tensors are theirs, with the same names,
        except that weights are called ``<op>.w``, as in an artifact. It need not write what only they read.

        The result does not depend on a GPU, since a stored candidate must mean the same to a reader without one: what
        the kernel needs of any GPU may decide here, and its kind's rules refuse the rest.

        Raises:
            InvalidInput: there is no such op, with the reason.
        """


def joined_workload(workload: Workload) -> Workload:
    """The workload whose ops compute all ops, some of them as one.

    Raises:
        InvalidInput: there is none, or an op has other tensors; with the reason.
    """
    found = _tried(workload)
    if isinstance(found, InvalidInput):
        raise found
    return found


def computed_by(workload: Workload) -> dict[str, tuple[str, ...]]:
    """For each op of `joined_workload`, the ops of the workload that it computes, in order."""
    joined = [op.name for op in joined_workload(workload).ops]
    found = {name: [name] for name in joined}
    reader_of: dict[str, str] = {}
    for op in reversed(workload.ops):
        owner = op.name if op.name in joined else reader_of[op.name]
        if op.name not in joined:
            found[owner].append(op.name)
        reader_of |= dict.fromkeys(op.read_names, owner)
    order = [op.name for op in workload.ops]
    return {name: tuple(sorted(found[name], key=order.index)) for name in joined}


@lru_cache(maxsize=256)  # a search asks for each candidate
def _tried(workload: Workload) -> Workload | InvalidInput:
    try:
        return _joined(workload)
    except InvalidInput as error:
        return error.with_traceback(None)


def _joined(workload: Workload) -> Workload:
    if others := [op.name for op in workload.launch_ops]:
        raise InvalidInput("ops", f"{', '.join(others)} has its own launch", _REMEDY)
    if normed := [op.name for op in workload.tile_ops if op.norm]:
        raise InvalidInput("ops", f"{normed[0]} has a norm", _REMEDY)
    known = [op for op in reversed(workload.ops) if kind_of(op)] if len(workload.ops) > 1 else []
    part = next((part for op in known if (part := part_of(op.KIND, "joined"))), None)
    if part is None:
        kinds = ", ".join(dict.fromkeys(getattr(op, "kind", "") or op.KIND for op in workload.ops))
        raise InvalidInput("ops", f"no kernel computes several of them as one op; their kinds are {kinds}", _REMEDY)
    found = part.joined(workload.ops, workload.dtype)
    ops = tuple(found) if isinstance(found, Sequence) else (found,)
    made = Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=workload.dtype)
    _check_tensors(made, workload)
    return made


_REMEDY = "use another plan kind"


def _check_tensors(made: Workload, workload: Workload) -> None:
    """Checks that the ops have the tensors that callers pass for the workload, and no others that it does not have."""
    known, found = _tensors(workload), _tensors(made)
    wanted = {name: form for name, form in known.items() if name not in _between(workload)}
    given = {name: form for name, form in found.items() if name not in _between(made)}
    alien = {name for name in found if found[name] != known.get(name)} | {op.name for op in made.ops} - known.keys()
    odd = sorted(alien | {name for name in wanted if given.get(name) != wanted[name]})
    if odd or made.ops[-1].name != workload.ops[-1].name:
        kinds = ", ".join(dict.fromkeys(op.KIND for op in made.ops if op not in workload.ops))
        what = ", ".join(odd) or made.ops[-1].name
        problem = f"{what} differ between {workload.describe()} and the ops {made.describe()}"
        raise InvalidInput("ops", problem, f"the package with {kinds} must use the tensors of the ops")


def _between(workload: Workload) -> set[str]:
    return {one.name for one in workload.ops if not workload.leaves(one)}


def _tensors(workload: Workload) -> Mapping[str, tuple[int, str, bool]]:
    return {_name(one, op): _form(one) for op in workload.ops for one in op.tensors(workload.dtype)}


def _name(tensor: Tensor, op: Op) -> str:
    return f"{op.name}.w" if tensor.name == f"{op.name}.weight" else tensor.name


def _form(tensor: Tensor) -> tuple[int, str, bool]:
    """What must agree: elements, their type, and whether the tensor is an output."""
    return tensor.num_elements, str(tensor.dtype), tensor.role is Role.OUTPUT
