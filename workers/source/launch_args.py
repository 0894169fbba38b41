"""The kernel's one by-value parameter, and its workspace: packed for a launch, and described for a manifest.

Both mirror `LaunchArgs` and `Workspace` in launch_args.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.core.legal.warpgroups.workloads import MAX_CTAS
from tuner.core.plan.graph.norm_slots import norm_slots, slot_stride, slots_read
from tuner.core.plan.order.split_k import slot_bytes
from tuner.core.plan.table.header import HEADER_WORDS
from tuner.core.problem.epilogue import Argument, Product
from tuner.core.problem.ops.kv_cache import CACHES
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.tiling import Engine, Tiling

from .parts import num_pointers, pointers_of
from .render import SIGNALS_OFFSET_BYTES
from .tensor_maps import tensor_maps

#: Bytes of a signal, and of a counter of arrivals.
WORD_BYTES = 4
#: Alignment of the parts of a workspace: `kFixupAlignment` in fixup.cuh.
WORKSPACE_ALIGNMENT_BYTES = 256

#: Name of the table of a paged cache that an op writes to.
_TABLE = (
    "int32 page numbers of each sequence, read when a launch runs: 0 to num_pages - 1. A token whose page does not "
    "exist is not written, but reported in the words `refused`. A cache may have a different number of pages: pass it "
    "in num_pages_field. Lines (of one head and token) and pages may have gaps: pass the elements from one line to the "
    "next in line_field, and the lines from one page to the next in page_lines_field. The table may have wider rows: "
    "pass the numbers per row in max_pages_field"
)
_HEAD_BYTES = 104
_OP_BYTES = 64
#: Fields after those of all ops, for each op, if one has a norm or writes squares: `ChainArgs`.
_CHAIN_OP = struct.Struct("<Qfi")
#: Fields of parts' arguments: for each op its own, pointers after its numbers; after all ops those that
#: `Part.arguments` lists.
_POINTER_BYTES = 8
_TYPES = {"pointer": "Q", "int32": "i"}
#: Where a workspace records invalid lengths or pages, in the same format as an attention's: `RefusedRecord`.
REFUSED_OFFSET_BYTES = 160


#: Alignment of the first tasks and of each tensor map in a wgmma kernel's parameter: `WgmmaArgs` in shared_wgmma.cuh.
_EXTENSION_ALIGNMENT = 64
_FIRST_TASK = struct.Struct("<iibBB?HH")
MAP_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class OpBuffers:
    """Device addresses of one op's operands, and its shape; 0 for a missing operand.

    For an op with a norm, `row_scale` is the table of squares that it reads, and `squares` the table that it writes.
    """

    a: int
    w: int
    bias: int
    c: int
    residual: int = 0
    row_scale: int = 0
    squares: int = 0
    #: Further arguments of the parts of its epilogue, by their names: addresses, and numbers that are not the op's.
    parts: Mapping[str, int] = field(default_factory=dict)
    m: int
    n: int
    k: int


def pack_args(
    words_address: int,
    workspace_address: int,
    spin_limit_cycles: int,
    plan: VerifiedPlan,
    ops: tuple[OpBuffers, ...],
    *,
    is_dependent: bool = False,
    is_second: bool = False,
    trace_address: int = 0,
) -> bytes:
    """The parameter of one launch.

    `is_dependent` if it is launched programmatically, `is_second` if it is the second of two launches that share a
    workspace, `trace_address` is that of its stamps if the build is traced.
    """
    flags = (is_dependent, is_second)
    head = struct.pack("<QQqiiQ", words_address, workspace_address, spin_limit_cycles, *flags, trace_address)
    workload, tiling = plan.graph.workload, plan.graph.tiling
    room = _POINTER_BYTES * num_pointers(workload)
    tail = b"".join(
        struct.pack(
            "<QQQQQQiiii",
            *(o.a, o.w, o.bias, o.c, o.residual, o.row_scale),
            *(o.m, o.n, o.k, slots_read(workload, tiling, index)),
        )
        + _pack(pointers_of(op), o.parts).ljust(room, b"\0")
        for index, (o, op) in enumerate(zip(ops, workload.tile_ops, strict=True))
    )
    if has_squares(workload):
        tail += b"".join(_CHAIN_OP.pack(o.squares, op.eps, 0) for o, op in zip(ops, workload.tile_ops, strict=True))
    for o, op in zip(ops, workload.tile_ops, strict=True):
        tail += _pack(_arguments_of(workload, op), o.parts)
    return head + plan.words[:HEADER_WORDS].tobytes() + tail


def _pack(arguments: Sequence[Argument], given: Mapping[str, int]) -> bytes:
    """Arguments of parts in sequence: given values, otherwise the op's own numbers."""
    values = (given[one.name] if one.value is None else given.get(one.name, one.value) for one in arguments)
    return struct.pack("<" + "".join(_TYPES[one.type] for one in arguments), *values)


def _arguments_of(workload: Workload, op: Product) -> list[Argument]:
    return [one for part in op.parts for one in part.arguments(op, workload.cache_name_of(op))]


def has_squares(workload: Workload) -> bool:
    """Whether a kernel of the workload has arguments for norms."""
    return any(op.norm for op in workload.tile_ops)


def first_tasks(plan: VerifiedPlan) -> bytes:
    """The first task of each CTA, if the plan assigns it, in the form of a wgmma kernel's parameter."""
    words = plan.plan
    rows = []
    for cta in range(MAX_CTAS):
        index = words.first_task(cta)
        if index is None:
            rows.append(_FIRST_TASK.pack(0, 0, -1, 0, 0, False, 0, 0))
        else:
            op, tile_m, tile_n, wait_begin, wait_end, _, part, num_parts, _, *steps = words.tasks[index].tolist()
            rows.append(_FIRST_TASK.pack(tile_m, tile_n, op, part, num_parts, wait_end > wait_begin, *steps))
    return b"".join(rows)


def extend_args(args: bytes, first: bytes, maps: tuple[bytes, ...]) -> bytes:
    """A wgmma kernel's parameter: the common arguments of all engines, the CTAs' first tasks, and the encoded tensor
    maps.
    """
    return args + bytes(-len(args) % _EXTENSION_ALIGNMENT) + first + b"".join(maps)


def parameter_layout(workload: Workload, tiling: Tiling, spin_limit_cycles: int) -> dict[str, Any]:
    """The one by-value struct that the kernel takes, field by field, and the value of `spin_limit_cycles`."""

    def field(name: str, offset: int, kind: str, meaning: str, tensor: str = "") -> dict[str, Any]:
        return {"name": name, "offset": offset, "type": kind, "meaning": meaning} | (
            {"tensor": tensor} if tensor else {}
        )

    fields = [
        field("words", 0, "pointer", "the plan on the device"),
        field("workspace", 8, "pointer", "the launch's workspace"),
        field("spin_limit_cycles", 16, "int64", "SM clock cycles that one wait may last"),
        field("is_dependent", 24, "int32", "1 for a programmatic dependent launch, else 0"),
        field("is_second", 28, "int32", "1 for the second of two launches that share a workspace, else 0"),
        field("trace", 32, "pointer", "null: only a traced build writes there"),
        field("plan_header", 40, "int32[16]", "the first 16 words of the plan, by value"),
    ]
    op_bytes = _OP_BYTES + _POINTER_BYTES * num_pointers(workload)
    for i, op in enumerate(workload.tile_ops):
        base, rows = _HEAD_BYTES + i * op_bytes, "2n" if op.rows_per_column == 2 else "n"
        fields += [
            field(f"{op.name}.a", base, "pointer", f"{op.source} [m, k]"),
            field(f"{op.name}.w", base + 8, "pointer", f"weight [{rows}, k]"),
            field(f"{op.name}.bias", base + 16, "pointer", f"bias [{rows}], or null"),
            field(f"{op.name}.c", base + 24, "pointer", _output_meaning(op)),
            field(f"{op.name}.residual", base + 32, "pointer", "residual [m, n], or null", op.residual_source),
            field(
                f"{op.name}.row_scale", base + 40, "pointer", _scale_meaning(workload, tiling, i), squares_of(op.norm)
            ),
            field(f"{op.name}.m", base + 48, "int32", str(op.m)),
            field(f"{op.name}.n", base + 52, "int32", str(op.n)),
            field(f"{op.name}.k", base + 56, "int32", str(op.k)),
            *_fields_of(op, pointers_of(op), base + _OP_BYTES),
        ]
    size = _HEAD_BYTES + len(workload.tile_ops) * op_bytes
    if has_squares(workload):
        for i, op in enumerate(workload.tile_ops):
            slots = norm_slots(workload, tiling, i) if workload.writes_squares(i) else 0
            read = str(slots_read(workload, tiling, i))
            table = f"fp32 table of squares [{slots}, {slot_stride(op.m)}], which it writes" if slots else "null"
            fields += [
                field(f"{op.name}.num_slots", _HEAD_BYTES + i * op_bytes + 60, "int32", read),
                field(f"{op.name}.squares", size, "pointer", table, squares_of(op.name) if slots else ""),
                field(f"{op.name}.eps", size + 8, "float32", str(op.eps)),
            ]
            size += _CHAIN_OP.size
    for op in workload.tile_ops:
        arguments = _arguments_of(workload, op)
        fields += _fields_of(op, arguments, size)
        size += struct.calcsize("<" + "".join(_TYPES[one.type] for one in arguments))
    if tiling.engine is Engine.WGMMA:
        size += -size % _EXTENSION_ALIGNMENT
        num_bytes = MAX_CTAS * _FIRST_TASK.size
        fields.append(field("first_tasks", size, f"bytes[{num_bytes}]", "as the launch gives them, hexadecimal"))
        size += num_bytes
        for tensor_map in tensor_maps(workload, tiling):
            name = f"{workload.tile_ops[tensor_map.op].name}.{tensor_map.operand}_map"
            fields.append(field(name, size, f"bytes[{MAP_BYTES}]", "the encoded tensor map of that name"))
            size += MAP_BYTES
    layout = {"size_bytes": size, "spin_limit_cycles": spin_limit_cycles, "fields": fields}
    return layout | _written_pages(workload)


def _written_pages(workload: Workload) -> dict[str, Any]:
    """For the cache that an op writes to, if it has pages: its table, and the field with their number."""
    for op in workload.tile_ops:
        if op.written_cache and (paged := op.written_cache.paged(op.m)):
            cache = workload.cache_name_of(op)
            pages = {
                "tensor": f"{cache}.pages",
                "caches": [f"{cache}.{name}" for name in CACHES],
                "num_pages_field": f"{op.name}.num_pages",
                "num_pages": paged.num_pages,
                **{f"{name}_field": f"{op.name}.{name}" for name in ("line", "page_lines", "max_pages", "max_length")},
                "page_tokens": paged.page_tokens,
                "meaning": _TABLE,
            }
            return {"pages": pages}
    return {}


def _output_meaning(op: TileOp) -> str:
    return f"queries [m, {op.c_columns}], turned" if op.written_cache else "output [m, n]"


def _fields_of(op: Product, arguments: Sequence[Argument], begin: int) -> list[dict[str, Any]]:
    """Arguments of parts as a manifest lists them, one after another from that offset on."""
    found = []
    for one in arguments:
        named = {"name": f"{op.name}.{one.name}", "offset": begin, "type": one.type, "meaning": one.meaning}
        named |= {"tensor": one.tensor} if one.tensor else {}
        found.append(named | ({} if one.value is None else {"value": one.value}))
        begin += struct.calcsize(_TYPES[one.type])
    return found


def squares_of(tensor: str) -> str:
    """Name of the table with the sums of squares of a tensor's rows; empty if there is none."""
    return f"{tensor}.squares" if tensor else ""


def _scale_meaning(workload: Workload, tiling: Tiling, op_index: int) -> str:
    op = workload.tile_ops[op_index]
    if not op.norm:
        return "fp32 row scale [m], or null"
    shape = f"[{slots_read(workload, tiling, op_index)}, {slot_stride(op.m)}]"
    return f"fp32 table {shape} of the squares of {op.norm}"


def workspace_layout(plan: VerifiedPlan) -> dict[str, int]:
    """The layout for one stream and one plan, in bytes: where signals start, the arrival counters of split tiles, the
    sums of their parts, and the total size; see launch_args.cuh and fixup.cuh. Elements that are passed in band come
    before the sums, and are zero before the first launch, like the rest."""
    workload, tiling, num_split = plan.graph.workload, plan.graph.tiling, plan.plan.num_split_tiles
    arrivals = _aligned(SIGNALS_OFFSET_BYTES + WORD_BYTES * plan.plan.num_signals)
    slots = arrivals + _aligned(WORD_BYTES * num_split * tiling.cluster_size)
    slots += mailbox_bytes(workload) if plan.plan.in_band_ops else 0
    sizes = {"signals": SIGNALS_OFFSET_BYTES, "arrivals": arrivals, "slots": slots}
    return sizes | {"bytes": slots + num_split * slot_bytes(workload, tiling)}


def mailbox_bytes(workload: Workload) -> int:
    """Bytes of all mailboxes: two halves for each op that another one reads as A, with the maximum rows of an op."""
    producers = {workload.producer_of(index) for index in range(len(workload.tile_ops))}
    rows, read = max(op.m for op in workload.tile_ops), (op for i, op in enumerate(workload.tile_ops) if i in producers)
    return sum(2 * _aligned(workload.dtype.size_bytes * rows * op.n) for op in read)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES


def needs_co_residency(plan: VerifiedPlan) -> bool:
    """Whether the plan's liveness depends on all CTAs being resident, so that the launch must be cooperative."""
    return plan.plan.needs_all_ctas and not plan.is_paired
