"""The code of epilogues' parts in a source: the program's constants, and the code of packages."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.core.legal.warpgroups.parts import exchanged_numbers, team_warps
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue import Argument, Product, Stage
from tuner.core.problem.ops.op import Role, Tensor
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling

from .rows import in_place

#: The row, and the column or the row of W, within the matrix.
_PLACE = "min(row, op.m - 1), half * op.n + min(column, op.n - 1)"
#: The stages' names in finish.cuh.
_STAGES = {Stage.SUMS: "kOfSums", Stage.OUTPUT: "kOfOutput", Stage.RESULT: "kOfResult"}


def pointers_of(op: TileOp) -> list[Argument]:
    """Pointers of the op's arguments after the common ones: those of its parts, or of the other tensors of an op
    that is not a product."""
    beside = (
        Argument(name=member_of(op, one), meaning=f"{one.role} {[*one.shape]}", tensor=one.name)
        for one in ([] if op.IS_PRODUCT else op.others(Dtype.FP16))
    )
    return [*(pointer for part in op.parts for pointer in part.pointers(op)), *beside]


def listed_others(op: TileOp, workload: Workload) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """For an op that is not a product, role, name, shape and type of its tensors other than source, W and output, as
    a manifest lists them."""
    for one in op.others(workload.dtype):
        if one.role is not Role.INPUT or one.name not in workload.written:
            is_between = one.role is Role.OUTPUT and workload.is_read(one.name)
            yield "intermediate" if is_between else str(one.role), one.name, one.shape, one.dtype


def member_of(op: TileOp, tensor: Tensor) -> str:
    """The name of an op's tensor in device code and manifests: its field's name, or ``state`` for ``mean.state``."""
    fields = {read.tensor: read.field for read in op.reads}
    return fields.get(tensor.name, tensor.name.rpartition(".")[2])


def num_pointers(workload: Workload) -> int:
    """The number of such pointers in each op's arguments: the maximum over the ops."""
    return max((len(pointers_of(op)) for op in workload.tile_ops), default=0)


def parts_config(workload: Workload, tiling: Tiling) -> str:
    """Definitions before the device files; empty if no op has a part that needs them."""
    ops = workload.tile_ops
    text = "".join(part.constants(index, op) for index, op in enumerate(ops) for part in op.parts)
    if of_sums := sum(1 << index for index, op in enumerate(ops) if _adds_to_sums(op)):
        text += f"#define TUNER_ADDED_TO_SUMS {of_sums}\n"
    text += _tiles_config(workload, tiling)
    lists = list(dict.fromkeys(op.epilogue for op in ops if op.epilogue))
    pointers = f"#define TUNER_PART_POINTERS {count}\n" if (count := num_pointers(workload)) else ""
    if not lists:
        return text + pointers
    numbers = "".join(f"op == {i} ? {lists.index(op.epilogue) + 1} : " for i, op in enumerate(ops) if op.epilogue)
    text += f"#define TUNER_PARTS\n{pointers}"
    return f"{text}__device__ constexpr int parts_of(int op) {{ return {numbers}0; }}\n"


def _tiles_config(workload: Workload, tiling: Tiling) -> str:
    """Which ops have parts that multiply, store or watch tiles, or exchange numbers; empty if none has."""
    ops = [[part.kernel for part in op.epilogue] for op in workload.tile_ops]
    if not any(one.has_device_file for kernels in ops for one in kernels):
        return ""
    has = "".join(
        f"__device__ constexpr bool part_{hook}(int op) {{ return ({bits} >> op & 1) != 0; }}\n"
        for hook in ("multiplies", "stores", "watches")
        for bits in [sum(1 << index for index, kernels in enumerate(ops) if any(getattr(one, hook) for one in kernels))]
    )
    exchanged = [exchanged_numbers(op, team_warps(tiling)) for op in workload.tile_ops]
    numbers = "".join(f"op == {index} ? {count} : " for index, count in enumerate(exchanged) if count)
    return (
        f"#define TUNER_PARTS_OF_TILES\n{has}"
        f"__device__ constexpr int part_exchanges([[maybe_unused]] int op) {{ return {numbers}0; }}\n"
    )


def parts_of_tiles(workload: Workload) -> dict[str, str]:
    """For `wgmma`: device files of parts that multiply, store or watch tiles, by name, and the ops that have them."""
    parts = dict.fromkeys(type(part) for op in workload.tile_ops for part in op.epilogue)
    files = {part.wgmma_file(): part.wgmma_text() for part in parts if part.kernel.has_device_file}
    uses = "".join(line for index, op in enumerate(workload.tile_ops) for line in _uses(index, op))
    return files | {"parts of tiles": uses} if files else {}


def _uses(index: int, op: Product) -> Iterator[str]:
    first = 0
    for part in op.epilogue:
        if multiplies := part.kernel.multiplies:
            yield f"template <>\nstruct PartProduct<{index}> : {multiplies}<{index}, {first}> {{}};\n"
        for hook, name in (("PartStore", part.kernel.stores), ("PartWatch", part.kernel.watches)):
            base = f"{name}<{index}, kFirst, kEnd, {first}>"
            if name:
                yield f"template <int kFirst, int kEnd>\nstruct {hook}<{index}, kFirst, kEnd> : {base} {{}};\n"
        first += len(part.owns)


def _adds_to_sums(op: Product) -> bool:
    return any(part.is_read_first and part.stage is Stage.SUMS for part in op.parts)


def with_parts(text: str, workload: Workload) -> str:
    """A device file with the structs of packages' parts, and a line where each is applied."""
    structs = dict.fromkeys(type(part) for op in workload.tile_ops for part in op.epilogue)
    if not structs:
        return text
    lines, prefetches = (
        "".join(line for index, op in enumerate(workload.tile_ops) for line in lines_of(index, op))
        for lines_of in (_lines, _prefetches)
    )
    said = {"TUNER_PART_STRUCTS": "".join(part.text() for part in structs), "TUNER_PART_LINES": lines}
    return in_place(text, said | {"TUNER_PART_PREFETCHES": prefetches})


def _lines(index: int, op: Product) -> Iterator[str]:
    first = 0
    for part in op.epilogue:
        types = list(part.pointer_types().values())
        pointers = [_pointer(of, first + place) for place, of in enumerate(types)]
        columns, inside = (["op.n"], "if (row < op.m && column < op.n) ") if part.writes() else ([], "")
        made = f"{type(part).__name__}{{{', '.join([*part.literals(), *pointers, *columns])}}}"
        at = f"kOp == {index} && kStage == {_STAGES[part.stage]}"
        yield f"  if constexpr ({at}) {inside}x = {made}(x, {_PLACE});\n"
        first += len(types)


def _prefetches(index: int, op: Product) -> Iterator[str]:
    """A line for each tensor with a number for a column, for each row of W, or for all."""
    tensors = [tensor for part in op.epilogue for tensor in part.tensors(op, Dtype.FP16)]
    types = [of for part in op.epilogue for of in part.pointer_types().values()]
    for place, (tensor, of) in enumerate(zip(tensors, types, strict=True)):
        if tensor.role is not Role.WEIGHT or tensor.shape not in ((1,), (op.n,), (op.weight_rows,)):
            continue
        pointer = _pointer(of, place)
        is_one = tensor.num_elements == 1
        numbers = f"prefetch_numbers<{tensor.num_elements // op.n}>({pointer}, op.n, column, count)"
        yield f"  if constexpr (kOp == {index}) {f'prefetch_l2({pointer})' if is_one else numbers};\n"


def _pointer(of: str, place: int) -> str:
    """A part's pointer of that type."""
    given = f"op.parts[{place}]"
    return f"static_cast<{of}>({given if of.startswith('const ') else f'const_cast<void*>({given})'})"
