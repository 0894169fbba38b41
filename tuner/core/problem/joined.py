"""Workloads whose ops can be one op: the file ``joined`` of the last op's kind makes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import kind_of, part_of
from tuner.core.problem.ops.op import LaunchOp, Op, Role, Tensor
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput


class Joins(Protocol):
    """The file ``joined`` of a kind."""

    def joined(self, ops: Sequence[Any], dtype: Dtype) -> LaunchOp:
        """One op that computes what all `ops` compute, whatever their kinds are; the last one is of this kind.

        It has the name of the last op. Its tensors are those of the ops, with the same names, except that weights are
        called ``<op>.w``, as in an artifact. It need not write what only the ops read.

        Raises:
            InvalidInput: there is no such op, with the reason.
        """


def joined_workload(workload: Workload) -> Workload:
    """The workload of the one op that computes all ops.

    Raises:
        InvalidInput: there is none, or the kind's op has other tensors; with the reason.
    """
    found = _tried(workload)
    if isinstance(found, InvalidInput):
        raise found
    return found


@lru_cache(maxsize=256)  # a search asks for each candidate
def _tried(workload: Workload) -> Workload | InvalidInput:
    try:
        return _joined(workload)
    except InvalidInput as error:
        return error.with_traceback(None)


def _joined(workload: Workload) -> Workload:
    last = workload.ops[-1]
    part = part_of(last.KIND, "joined") if kind_of(last) and len(workload.ops) > 1 else None
    if part is None:
        kind = getattr(last, "kind", "") or last.KIND
        raise InvalidInput(
            "ops", f"no kernel computes all of them as one op, for a last op of the kind {kind}", _REMEDY
        )
    if others := [op.name for op in workload.launch_ops]:
        raise InvalidInput("ops", f"{', '.join(others)} has its own launch", _REMEDY)
    op: Op = part.joined(workload.ops, workload.dtype)
    _check_tensors(op, workload)
    return Workload(kind=WorkloadKind.CHAIN, ops=(op,), dtype=workload.dtype)


_REMEDY = "use another plan kind"


def _check_tensors(op: Op, workload: Workload) -> None:
    """Checks that the op has the tensors that callers pass for the workload, and no others."""
    known = {_name(one, made): one for made in workload.ops for one in made.tensors(workload.dtype)}
    between = {one.name for one in workload.ops if not workload.leaves(one)}
    wanted = {name: _form(one) for name, one in known.items() if name not in between}
    found = {one.name: _form(one) for one in op.tensors(workload.dtype)}
    if found != wanted or op.name != workload.ops[-1].name:
        odd = sorted(name for name in {*found, *wanted, op.name} if found.get(name) != wanted.get(name)) or [op.name]
        problem = f"{', '.join(odd)} differ between {workload.describe()} and the op {op.name} of the kind {op.KIND}"
        raise InvalidInput("ops", problem, f"the package with {op.KIND} must use the tensors of the ops")


def _name(tensor: Tensor, op: Op) -> str:
    return f"{op.name}.w" if tensor.name == f"{op.name}.weight" else tensor.name


def _form(tensor: Tensor) -> tuple[int, str, bool]:
    """What must agree: elements, their type, and whether the tensor is an output."""
    return tensor.num_elements, str(tensor.dtype), tensor.role is Role.OUTPUT
