"""Products by PyTorch's own calls, on the same buffers.

The calls of a model written in PyTorch: `linear`, an activation and an RMSNorm per op, eager or compiled. Inputs,
weights and biases are those of the problem's slots, in the order of the chain.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import cupy

from tuner.core.problem.tile_op import TileOp
from tuner.core.trial.reports.torch_time import COMPILE_MODE, TorchCalls
from tuner.errors import WorkerError
from tuner.workers.gpu.library.torch_graph import Call, TorchGraph, imported_torch, torch_tensor
from tuner.workers.gpu.tensors.data import ProblemData
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.launch_args import OpBuffers


def torch_chain(data: ProblemData, calls: TorchCalls) -> TorchGraph:
    """The products of a problem as a graph of PyTorch. With torch.compile this takes longer than a search.

    Raises:
        WorkerError: PyTorch is not installed, or has no call for an op.
    """
    torch = imported_torch()
    refused = (part.torch(op) for op in data.workload.tile_ops for part in op.parts)
    if reason := next(filter(None, refused), ""):
        raise WorkerError(reason)
    if stored := next((op.weights for op in data.workload.tile_ops if op.weights), None):
        raise WorkerError(f"PyTorch has no product with weights in {stored}: compare without it")
    if any(op.norm not in ("", op.source) for op in data.workload.tile_ops):
        raise WorkerError("PyTorch has no call for the norm of a tensor that the op does not read: compare without it")
    chain = _Chain(torch, data)
    call = _compiled(torch, chain.run) if calls is TorchCalls.COMPILED else chain.run
    return TorchGraph(torch, data, chain.operands_of, call)


class _Chain:
    """The calls of a workload's products."""

    def __init__(self, torch: Any, data: ProblemData) -> None:
        self._torch, self._data = torch, data
        self._dtype_name = data.workload.dtype.row.array_name

    def operands_of(self, ops: tuple[OpBuffers, ...]) -> list[dict[str, Any]]:
        """The operands of each op, by the tensors' roles in it."""
        return [self._operands(op, buffer) for op, buffer in zip(self._data.workload.tile_ops, ops, strict=True)]

    def _operands(self, op: TileOp, buffer: OpBuffers) -> dict[str, Any]:
        """The op's tensors, in the problem's own memory; a tensor that the op does not have is None."""
        rows = op.weight_rows
        shapes = {
            "a": (buffer.a, (op.m, op.k)),
            "w": (buffer.w, (rows, op.k)),
            "bias": (buffer.bias, (rows,)),
            "residual": (buffer.residual, (op.m, op.n)),
        }
        return {name: self._tensor(address, shape) if address else None for name, (address, shape) in shapes.items()}

    def _tensor(self, address: int, shape: tuple[int, ...]) -> Any:
        size_bytes = math.prod(shape) * self._data.workload.dtype.size_bytes
        memory = cupy.cuda.UnownedMemory(address, size_bytes, self._data)
        bits = cupy.ndarray(shape, bits_type(self._data.workload.dtype), cupy.cuda.MemoryPointer(memory, 0))
        return torch_tensor(self._torch, bits, self._dtype_name)

    def run(self, operands: list[dict[str, Any]]) -> dict[str, Any]:
        """One run of the workload; its outputs, by op."""
        workload, outputs = self._data.workload, list[Any]()
        for index, (op, tensors) in enumerate(zip(workload.tile_ops, operands, strict=True)):
            producer = workload.producer_of(index)
            a = tensors["a"] if producer is None else outputs[producer]
            if op.norm:
                a = self._norm(a, op.eps)
            z = self._torch.nn.functional.linear(a, tensors["w"], tensors["bias"])
            if op.gated:
                gate, up = z.chunk(2, dim=-1)
                y = op.activation.row.torch(self._torch.nn.functional, gate) * up
            else:
                y = op.activation.row.torch(self._torch.nn.functional, z)
            added = workload.residual_producer_of(index)
            residual = tensors["residual"] if added is None else outputs[added]
            outputs.append(y if residual is None else y + residual)
        return {op.name: output for op, output in zip(workload.tile_ops, outputs, strict=True) if workload.leaves(op)}

    def _norm(self, a: Any, eps: float) -> Any:
        """RMSNorm as models write it, in fp32 and rounded at the end."""
        wide = a.float()
        return (wide * self._torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(
            getattr(self._torch, self._dtype_name)
        )


def _compiled(torch: Any, run: Call) -> Call:
    """`run` with torch.compile, which compiles at its first call."""
    with suppress(ImportError):
        from torch._inductor import select_algorithm

        select_algorithm.PRINT_AUTOTUNE = False  # its progress would fill the service's log
    compiled: Call = torch.compile(run, mode=COMPILE_MODE, dynamic=False)
    return compiled
