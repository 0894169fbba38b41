"""The device code of tile ops whose kind defines a task, or the positions of a product's rows."""

from __future__ import annotations

from typing import Any, Protocol, cast

from tuner.core.problem.dtype import ELEMENTS, FP32, INT32, Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Role
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.errors import IllegalSchedule

from .parts import member_of


class TaskSource(Protocol):
    """The module ``source`` of such a kind."""

    def task_of(self, op: Any, tile: Tile, chosen: Any, dtype: Dtype) -> str:
        """CUDA C++: the members of a struct, among them ``run``, as own_task.cuh expects it. `chosen` are the kind's
        own choices."""

    def version(self) -> str:
        """A digest of the code; results of a different version are a weaker match."""


def own_tasks(workload: Workload, tiling: Tiling) -> dict[int, str]:
    """The code of each such op in a source, by the op's index.

    Raises:
        IllegalSchedule: a kind has no such code.
    """
    return {
        index: _specialisation(index, op, tiling.tiles[index], tiling.of_kind(index), workload.dtype)
        for index, op in enumerate(workload.tile_ops)
        if not op.IS_PRODUCT
    }


class GatherSource(Protocol):
    """The module ``source`` of a kind of products that gathers its rows."""

    def gather_of(self, op: Any) -> str:
        """CUDA C++: the members of a struct, as gather.cuh expects it."""

    def version(self) -> str:
        """A digest of the text."""


def gathers(workload: Workload) -> dict[int, str]:
    """The code of each op that gathers its rows, with their positions, by the op's index.

    Raises:
        IllegalSchedule: a kind does not define it.
    """
    return {index: _gather(index, op) for index, op in enumerate(workload.tile_ops) if op.GATHERS}


def _gather(index: int, op: TileOp) -> str:
    if (part := part_of(op.KIND, "source")) is None:
        raise IllegalSchedule(f"{op.KIND}: this program does not know where its rows are")
    text = cast(GatherSource, part).gather_of(op)
    return f"// ---- {op.name}, a {op.KIND}\ntemplate <>\nstruct Gather<{index}> {{\n{text}}};\n"


def _specialisation(index: int, op: TileOp, tile: Tile, chosen: Any, dtype: Dtype) -> str:
    if (part := part_of(op.KIND, "source")) is None:
        raise IllegalSchedule(f"{op.KIND}: this program has no device code for its tasks")
    text = _members(op, dtype) + cast(TaskSource, part).task_of(op, tile, chosen, dtype)
    return f"// ---- {op.name}, a {op.KIND}\ntemplate <>\nstruct OwnTask<{index}> {{\n{text}}};\n"


def _c_type(dtype: str) -> str:
    row = ELEMENTS[dtype]
    return {FP32.name: "float", INT32.name: "int"}.get(dtype, f"u{row.bits}")


def _members(op: TileOp, dtype: Dtype) -> str:
    """A function for each of the op's other tensors, by the tensor's name, and code that sets the tensors that it
    writes to NaN after an abort."""
    lines, spoiled = list[str](), list[str]()
    for number, tensor in enumerate(op.others(dtype)):
        of, pointer = ("Element::Bits" if tensor.dtype == str(dtype) else _c_type(tensor.dtype)), f"op.parts[{number}]"
        if tensor.role in (Role.OUTPUT, Role.CACHE):
            pointer = f"const_cast<void*>({pointer})"
        else:
            of = f"const {of}"
        head = f"__device__ __forceinline__ static {of}* {member_of(op, tensor)}(const OpArgs& op)"
        lines.append(f"  {head} {{ return static_cast<{of}*>({pointer}); }}\n")
        if tensor.role is Role.OUTPUT and of == "Element::Bits":
            loop = f"for (long long i = team.thread(); i < {tensor.num_elements}; i += Team::kCount)"
            spoiled.append(f"    {loop} {member_of(op, tensor)}(op)[i] = Element::kNan;\n")
    if not spoiled:
        return "".join(lines)
    head = "  template <class Team>\n  __device__ static void spoil(const OpArgs& op, Team team) {\n"
    return "".join([*lines, head, *spoiled, "  }\n"])
