"""A workload's tensors in the memory of this process, its launches on the CPU, and their expected results."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.cases import H200, ordering
from tests.support.emulated.rotary import EmulatedCache
from tests.support.emulated.source import encoded, library_of
from tuner.core.legal.legality import dynamic_smem_bytes, estimated_resources
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.norm_slots import norm_slots, slot_stride
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.epilogue import Stage
from tuner.core.problem.epilogue.sums import Known
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Role
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.ordering import Ordering
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.ops.gemm.op import GemmOp
from tuner.workers.gpu.tensors.reference import Reference, references_of
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args, workspace_layout
from tuner.workers.source.parts import pointers_of
from tuner.workers.source.tensor_maps import TensorMap, tensor_maps
from tuner.workers.source.variants import Variant

Array = np.ndarray[Any, Any]
#: A launch: its plan, the plan on the device, its workspace, and the offset of the sums of parts.
Memory = tuple[VerifiedPlan, Array, Array, int]

#: So few SMs that every CTA has several tasks.
FEW_SMS = replace(H200, num_sms=4)
NAN, FP32_NAN, CANARY = 0x7FFF, 0x7FFFFFFF, 0xA5A5A5A5
#: Number of launches that share a workspace, so that epochs continue.
NUM_LAUNCHES = 2
#: Offsets in a workspace: the record of an abort, and a guarded build's count of CTAs.
ABORT_OFFSET, GUARD_OFFSET = 128, 200


def aligned(num_bytes: int, fill: int = 0xEE) -> Array:
    """Bytes that start at a multiple of 256."""
    raw = np.full(num_bytes + 512, fill, dtype=np.uint8)
    begin = -raw.ctypes.data % 256
    return raw[begin : begin + num_bytes]


def to_bits(values: Array, dtype: Dtype) -> Array:
    """Rounds to nearest even."""
    found: Array = dtype.row.to_bits(np, values)
    return found


def from_bits(bits: Array, dtype: Dtype) -> Array:
    """Converts to float64."""
    found: Array = dtype.row.from_bits(np, bits).astype(np.float64)
    return found


def plans_of(
    workload: Workload, tiling: Tiling, chosen: Ordering | None = None, *, is_fused: bool
) -> list[VerifiedPlan]:
    """One plan for all ops, or one for each."""
    resources, ops = estimated_resources(workload, tiling), range(len(workload.tile_ops))
    graphs = [tile_graph(workload, tiling, launch) for launch in ([tuple(ops)] if is_fused else [(op,) for op in ops])]
    order = chosen or ordering(len(workload.tile_ops))
    return [verify(make_plan(graph, order, FEW_SMS), graph, resources, FEW_SMS) for graph in graphs]


def reference_of(op: TileOp) -> Any:
    """The reference of an op, from the file ``reference`` of its kind."""
    part = part_of(op.KIND, "reference")
    assert part, op.KIND
    return part.reference


class EmulatedChain:
    """Tensors of one workload."""

    def __init__(
        self, workload: Workload, *, is_odd: bool = False, rows: int | None = None, is_packed: bool = False
    ) -> None:
        """Draws the tensors. Rows that are normed have unequal sizes; with `is_odd`, one channel of every second row is
        3e4, and the other rows are 1e-3. `rows`: the number of rows of a launch, fewer than the kernel was built for.
        `is_packed`: the caches are packed, as in `EmulatedCache`."""
        self.workload, self._is_odd, self._rows, self._is_packed = workload, is_odd, rows, is_packed
        self._bits = np.dtype(workload.dtype.row.bits_name)
        self._random = np.random.default_rng(0)
        self._tensors: dict[str, Array] = {}
        self._squares: dict[int, Array] = {}
        #: The workspaces of the last run, by launch.
        self.workspaces: list[Array] = []
        #: The cache of the rotated op.
        self.caches: dict[str, EmulatedCache] = {}
        #: The state of what ops change in place, before each launch.
        self._before: dict[str, Array] = {}
        for op in workload.tile_ops:
            self._draw_operands(op)

    def _draw_operands(self, op: GemmOp) -> None:
        self._put_weights(op)
        if op.bias:
            self._put(f"{op.name}.bias", self._random.standard_normal(op.weight_rows))
        given = [(op.source, op.source_shape), (self._residual(op), (op.m, op.n))]
        for name, shape in given[: 1 + op.residual]:
            if self.workload.op_index(name) is None and name not in self._tensors:
                self._put(name, self._sized(self._random.standard_normal(shape)), self.workload.elements_of(name))
        parts = ((part, tensor) for part in op.epilogue for tensor in part.tensors(op, self.workload.dtype))
        drawn = ((part, tensor) for part, tensor in parts if tensor.role is not Role.OUTPUT)
        for part, tensor in drawn:
            values = part.draw(op, tensor, self)
            if tensor.dtype == self.workload.dtype:
                self._put(tensor.name, values)
                continue
            held = aligned(tensor.num_bytes).view(ELEMENTS[tensor.dtype].array_name).reshape(tensor.shape)
            held[...] = values
            self._tensors[tensor.name] = held
        if op.row_scale:
            self._tensors[f"{op.name}.row_scale"] = aligned(4 * op.m).view(np.float32)
            self._tensors[f"{op.name}.row_scale"][:] = self._random.uniform(0.5, 2, op.m)
        self._put(op.name, np.zeros((op.m, op.c_columns)), op.stored_in(self.workload.dtype))
        self._draw_others(op)
        if op.rotary:
            spare = 0 if self.workload.turned_for else 3
            self.caches[op.name] = EmulatedCache(op.rotary, op.m, spare_pages=spare, is_packed=self._is_packed)
        if op.norm and self.workload.op_index(op.norm) is None:
            squares = aligned(4 * slot_stride(op.m)).view(np.float32)
            squares[:] = np.nan
            squares[: op.m] = (from_bits(self._tensors[op.norm], self.workload.dtype) ** 2).sum(axis=1)
            self._tensors[f"{op.norm}.squares"] = squares

    def _draw_others(self, op: TileOp) -> None:
        dtype = self.workload.dtype
        for one in (one for one in op.others(dtype) if one.name not in self._tensors):
            if one.dtype == str(dtype):
                self._put(one.name, self._random.standard_normal(one.shape))
            else:
                held = aligned(one.num_bytes).view(ELEMENTS[one.dtype].array_name).reshape(one.shape)
                held[...] = (
                    self._random.integers(*one.range, one.shape, endpoint=True)
                    if one.range
                    else self.factors(one.shape)
                )
                self._tensors[one.name] = held
            if one.role is Role.CACHE:
                self._before[one.name] = self._tensors[one.name].copy()

    def normal(self, shape: tuple[int, ...], dtype: str = "") -> Array:
        """Normally distributed elements, as in a trial."""
        return self._random.standard_normal(shape)

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> Array:
        """Random int32 elements from `least` to `most`."""
        return self._random.integers(least, most, shape, endpoint=True)

    def factors(self, shape: tuple[int, ...]) -> Array:
        """Factors from 0.5 to 2, as in a trial."""
        return self._random.uniform(0.5, 2, shape)

    def _put_weights(self, op: GemmOp) -> None:
        normal = self._random.standard_normal((op.weight_rows, op.k))
        if op.weights is None:
            brings_size = any(part.brings_size for part in op.parts)
            return self._put(f"{op.name}.w", normal if brings_size else normal / op.k**0.5)
        row = op.weights.row
        factors = self._random.uniform(0.5, 2, (op.weight_rows, op.k // row.group)) if row.group else None
        bits = row.drawn(np, normal.astype(np.float32), factors, self.workload.dtype.row)
        self._tensors[f"{op.name}.w"] = aligned(bits.nbytes).reshape(bits.shape)
        self._tensors[f"{op.name}.w"][...] = bits
        return None

    def _residual(self, op: GemmOp) -> str:
        return op.residual_source or f"{op.name}.residual"

    def _put(self, name: str, values: Array, dtype: Dtype | None = None) -> None:
        bits = to_bits(values, dtype or self.workload.dtype)
        held = aligned(bits.nbytes).view(bits.dtype).reshape(values.shape)
        held[...] = bits
        self._tensors[name] = held

    def _sized(self, values: Array) -> Array:
        rows = np.arange(values.shape[0])
        if not self._is_odd:
            return values * (0.5 + rows % 4)[:, None]
        values[:, values.shape[1] // 3] = 3e4 * (rows % 2 == 0)
        values[rows % 2 == 1] *= 1e-3
        return values

    def run(
        self,
        tiling: Tiling,
        plans: Sequence[VerifiedPlan],
        changes: tuple[tuple[str, str], ...] = (),
        *,
        variant: Variant = Variant.MEASURED,
        num_strangers: int = 0,
        rows: Sequence[int] = (),
        is_aborted: bool = False,
    ) -> dict[str, Array]:
        """The outputs of the last run. Outputs are initialised to NaN, or to 1 if the run is aborted; squares and sums
        of parts to NaN. A guarded build is told of `num_strangers` running CTAs of other launches. `rows`: the number
        of rows of each run. `is_aborted`: each launch finds that another of its CTAs has aborted."""
        library, memory = library_of(self.workload, tiling, changes, variant), self._memory_of(tiling, plans)
        num_runs = len(rows) or NUM_LAUNCHES
        for turn in range(num_runs):
            self._poison(is_aborted=is_aborted)
            self._rows = rows[turn] if rows else self._rows
            for plan, words, workspace, first_sum in memory:
                if turn == num_runs - 1:
                    workspace[GUARD_OFFSET : GUARD_OFFSET + 8].view(np.uint64)[:] += np.uint64(num_strangers)
                workspace[first_sum:] = 0xFF
                if is_aborted:
                    workspace[ABORT_OFFSET : ABORT_OFFSET + 4].view(np.uint32)[:] = 1
                self._launch(library, plan, words, workspace)
        for squares in self._squares.values():
            assert (squares[-16:] == CANARY).all(), "written behind the squares"
        dtype = self.workload.dtype
        found = {op.name: from_bits(self._written(op), op.stored_in(dtype)) for op in self.workload.tile_ops}
        return found | {name: self._values(self._tensors[name]) for name in self._left()}

    def _memory_of(self, tiling: Tiling, plans: Sequence[VerifiedPlan]) -> list[Memory]:
        """Zeroed memory for counters and for data passed between launches."""
        memory = []
        for index, op in enumerate(self.workload.tile_ops):
            if self.workload.writes_squares(index):
                words = norm_slots(self.workload, tiling, index) * slot_stride(op.m)
                self._squares[index] = aligned(4 * words + 64).view(np.uint32)
        for plan in plans:
            words, layout = aligned(plan.words.nbytes).view(plan.words.dtype), workspace_layout(plan)
            words[:] = plan.words
            memory.append((plan, words, aligned(layout["bytes"] + 256, 0), layout["slots"]))
        self.workspaces = [workspace for _, _, workspace, _ in memory]
        return memory

    def _written(self, op: GemmOp) -> Array:
        """All outputs of an op; for a rotating op, the queries and the new rows of both caches."""
        out = self._tensors[op.name]
        return self.caches[op.name].beside(out) if op.name in self.caches else out

    def _poison(self, *, is_aborted: bool) -> None:
        for op in self.workload.tile_ops:
            stored = op.stored_in(self.workload.dtype)
            self._tensors[op.name][...] = to_bits(np.ones(1), stored) if is_aborted else stored.row.nan_bits
        for name in self._left():
            held = self._tensors[name]
            held[...] = self._before.get(name, self.workload.dtype.row.nan_bits if held.dtype == self._bits else -1)
        for cache in self.caches.values():
            cache.poison()
        for squares in self._squares.values():
            squares[:-16], squares[-16:] = FP32_NAN, CANARY

    def _launch(self, library: ctypes.CDLL, plan: VerifiedPlan, words: Array, workspace: Array) -> None:
        tiling = plan.graph.tiling
        buffers = tuple(self._buffers(index) for index in range(len(self.workload.tile_ops)))
        args = pack_args(words.ctypes.data, workspace.ctypes.data, 1 << 40, plan, buffers)
        if tiling.engine is Engine.WGMMA:
            maps = tuple(self._of_rows(one) for one in tensor_maps(self.workload, tiling))
            args = extend_args(
                args, first_tasks(plan), tuple(encoded(one, getattr(buffers[one.op], one.operand)) for one in maps)
            )
        parameter = aligned(len(args))
        parameter[:] = np.frombuffer(args, np.uint8)
        num_stuck = library.emulate(
            ctypes.c_void_p(parameter.ctypes.data),
            *(plan.plan.num_ctas * tiling.cluster_size, tiling.num_threads, tiling.cluster_size),
            dynamic_smem_bytes(self.workload, tiling),
        )
        assert num_stuck == 0, f"{num_stuck} threads wait for ever"

    def _of_rows(self, recipe: TensorMap) -> TensorMap:
        """The map of a tensor in a launch with fewer rows; maps of weights stay unchanged."""
        if self._rows is None or recipe.operand == "w":
            return recipe
        return replace(recipe, dims=(recipe.dims[0], self._rows, *recipe.dims[2:]))

    def take_operands(self, other: EmulatedChain) -> None:
        """Copies the weights of `other`, and the first rows of its inputs."""
        for name, held in self._tensors.items():
            held[...] = other._tensors[name][: len(held)]

    def _buffers(self, index: int) -> OpBuffers:
        op, producer = self.workload.tile_ops[index], self.workload.norm_producer_of(index)
        squares = {one: array.ctypes.data for one, array in self._squares.items()}
        factors = self._address(f"{op.norm}.squares") if producer is None else squares[producer]
        return OpBuffers(
            a=self._address(op.source),
            w=self._address(f"{op.name}.w"),
            bias=self._address(f"{op.name}.bias"),
            c=self._address(op.name),
            residual=self._address(self._residual(op)) if op.residual else 0,
            row_scale=factors if op.norm else self._address(f"{op.name}.row_scale"),
            squares=squares.get(index, 0),
            parts={one.name: self._address(one.tensor) for one in pointers_of(op)}
            | (self.caches[op.name].buffers if op.name in self.caches else {}),
            m=self._rows or op.m,
            n=op.n,
            k=op.k,
        )

    def _address(self, name: str) -> int:
        return self._tensors[name].ctypes.data if name in self._tensors else 0

    def expected(self) -> dict[str, Array]:
        """The outputs of all ops in float64, rounded as the next op reads them."""
        dtype = self.workload.dtype
        values = {name: self._values(bits) for name, bits in (self._tensors | self._before).items()}
        for op in self.workload.tile_ops:
            if not op.IS_PRODUCT:
                others = {one.name: (values[one.name], None) for one in op.others(dtype) if one.role is not Role.OUTPUT}
                given = (values[op.source], values[f"{op.name}.w"])
                made = reference_of(op)(
                    np, op, *given, roundoff=0.0, **({"others": others} if op.others(dtype) else {})
                )
                for name, (out, _) in (made if op.others(dtype) else {op.name: made}).items():
                    is_element = self._tensors[name].dtype == self._bits
                    values[name] = from_bits(to_bits(out, dtype), dtype) if is_element else out
                continue
            sums = self._sums(op, values)
            if op.norm:
                sums /= np.sqrt((values[op.norm] ** 2).mean(axis=1, keepdims=True) + op.eps)
            if op.bias:
                sums += values[f"{op.name}.bias"]
            is_of_sums = any(part.slot == "residual" and part.stage is Stage.SUMS for part in op.parts)
            if is_of_sums:
                sums += values[self._residual(op)]
            if op.rotary:
                values[op.name] = self.caches[op.name].expected(sums)
                continue
            assert op.activation in (Activation.IDENTITY, Activation.SILU, Activation.RELU)
            gate = sums[:, : op.n] / (1 + np.exp(-sums[:, : op.n])) if op.activation is Activation.SILU else sums
            gate = np.maximum(gate, 0) if op.activation is Activation.RELU else gate
            out = gate * sums[:, op.n :] if op.gated else gate
            if op.residual and not is_of_sums:
                out = out + values[self._residual(op)]
            values[op.name] = from_bits(to_bits(out, dtype), dtype)
        return values

    def _sums(self, op: GemmOp, values: dict[str, Array]) -> Array:
        """The sums of a product; its kind defines how its rows are gathered."""
        a, w = values[op.source], values[f"{op.name}.w"]
        found: Array = reference_of(op)(np, op, a, w, roundoff=0.0)[0] if op.GATHERS else a @ w.T
        return found

    def references(self) -> dict[str, Reference]:
        """The references that the check of a trial uses for each output."""
        made: dict[str, Reference] = {}
        for index, op in enumerate(self.workload.tile_ops):
            tensors, is_normed = _Tensors(self, op, made), self.workload.writes_squares(index)
            made |= references_of(np, op, tensors, self.workload.dtype, is_normed=is_normed)
        return made

    def known(self, op: GemmOp, name: str) -> Array:
        """The op's input of this name: elements in float64, anything else unchanged."""
        operand = name.removeprefix(f"{op.name}.")
        if operand in ("lengths", "frequencies"):
            found: Array = getattr(self.caches[op.name], operand)
            return found
        held = self._before.get(name, self._tensors[f"{op.name}.w" if operand == "weight" else name])
        if operand == "weight" and op.weights:
            return np.asarray(op.weights.row.known(np, held, op.k, self.workload.dtype.row))
        dtype = self.workload.elements_of(name)
        return from_bits(held, dtype) if held.dtype == dtype.row.bits_name else held

    def _left(self) -> list[str]:
        """The names of the tensors that ops write in addition to their outputs."""
        beside = (one for op in self.workload.tile_ops for one in op.others(self.workload.dtype))
        return [one.name for one in beside if one.role in (Role.OUTPUT, Role.CACHE)]

    def _values(self, held: Array) -> Array:
        return from_bits(held, self.workload.dtype) if held.dtype == self._bits else held.astype(np.float64)

    def worst_row(self, got: dict[str, Array]) -> float:
        """The largest relative error of a row of any output; NaN if an element is NaN."""
        wanted = self.expected()
        errors = [
            np.linalg.norm(got[name] - wanted[name], axis=-1).ravel() / np.linalg.norm(wanted[name], axis=-1).ravel()
            for name in (*(op.name for op in self.workload.tile_ops), *self._left())
        ]
        return float(np.concatenate(errors).max())


class _Tensors:
    """The inputs of an op's reference."""

    def __init__(self, chain: EmulatedChain, op: GemmOp, made: dict[str, Reference]) -> None:
        self._chain, self._op, self._made = chain, op, made

    def __getitem__(self, name: str) -> Known:
        if name in self._made:
            return Known(values=self._made[name].values, tolerance=self._made[name].tolerance)
        return Known(values=self._chain.known(self._op, name))
