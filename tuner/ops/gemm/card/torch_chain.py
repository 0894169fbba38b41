"""Products by PyTorch's own calls, on the same buffers.

What a model written in PyTorch does: `linear`, an activation and an RMSNorm per op, eager or compiled, captured in
PyTorch's own CUDA graph, whose outputs come from a memory pool of its own. Inputs, weights and biases are those of the
problem's slots, in the order of the chain, so a sample reads from DRAM what a sample of any plan kind reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cupy

from tuner.core.problem.tile_op import TileOp
from tuner.core.trial.reports.torch_time import COMPILE_MODE, TorchCalls
from tuner.errors import WorkerError
from tuner.workers.gpu.tensors.data import ProblemData
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.launch_args import OpBuffers


def torch_chain(data: ProblemData, calls: TorchCalls) -> TorchChain:
    """Of the products of a problem; by torch.compile it takes longer than a search, most of it on the card.

    Raises:
        WorkerError: PyTorch is not installed, or has no call for an op.
    """
    try:
        import torch
    except ImportError as error:
        raise WorkerError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    refused = (part.torch(op) for op in data.workload.tile_ops for part in op.parts)
    if reason := next(filter(None, refused), ""):
        raise WorkerError(reason)
    if stored := next((op.weights for op in data.workload.tile_ops if op.weights), None):
        raise WorkerError(f"PyTorch has no product with weights in {stored}: compare without it")
    if any(op.norm not in ("", op.source) for op in data.workload.tile_ops):
        raise WorkerError("a norm of what an op does not read has no call of PyTorch: compare without it")
    return TorchChain(torch, data, calls)


class TorchChain:
    """A captured chain; `launch` is that of a CuPy graph, so that a timer takes both in the same rounds."""

    def __init__(self, torch: Any, data: ProblemData, calls: TorchCalls = TorchCalls.EAGER) -> None:
        """Warms up and captures; `torch` is the module."""
        self._torch = torch
        self._data = data  # the graph reads its buffers
        self._dtype = getattr(torch, data.workload.dtype.row.array_name)
        #: Signed integers of an element's size, as both libraries know them.
        self._bits_name = f"int{data.workload.dtype.row.bits}"
        operands = [self._operands_of(data.slot_ops(slot)) for slot in range(data.chain_length)]
        self._call = run = _compiled(torch, self._run) if calls is TorchCalls.COMPILED else self._run
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.no_grad():
            with torch.cuda.stream(side):  # libraries make their handles and workspaces outside of a capture
                run(operands[0])
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=side):
                self._outputs = [run(of_slot) for of_slot in operands]
        self._operands_of_slots = operands  # the graph reads them

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.ptr)):
            self._graph.replay()

    def output(self, slot: int) -> Any:
        """The last op's output [m, n] of one run of the last chain, as the bits of its elements in a CuPy array."""
        return self._bits(self._outputs[slot][-1])

    def outputs_of(self, ops: tuple[OpBuffers, ...]) -> dict[str, Any]:
        """By op, what one run on these operands leaves of those whose output leaves it: the bits [m, n] of its elements
        in a CuPy array. On the default stream, and waited for."""
        workload = self._data.workload
        with self._torch.no_grad():
            outputs = self._call(self._operands_of(ops))
        self._torch.cuda.synchronize()
        leaving = [op.name for op in workload.tile_ops if workload.leaves(op)]
        return {name: self._bits(output) for name, output in zip(leaving, outputs, strict=True)}

    def _bits(self, output: Any) -> Any:
        bits = output.contiguous().view(getattr(self._torch, self._bits_name))
        return cupy.from_dlpack(bits).view(bits_type(self._data.workload.dtype))

    def _operands_of(self, ops: tuple[OpBuffers, ...]) -> list[dict[str, Any]]:
        return [self._operands(op, buffer) for op, buffer in zip(self._data.workload.tile_ops, ops, strict=True)]

    def _operands(self, op: TileOp, buffer: OpBuffers) -> dict[str, Any]:
        """The op's tensors, on the problem's own memory; None where it has none."""
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
        bits = cupy.ndarray(shape, self._bits_name, cupy.cuda.MemoryPointer(memory, 0))
        return self._torch.from_dlpack(bits).view(self._dtype)

    def _run(self, operands: list[dict[str, Any]]) -> Any:
        """One run of the workload; the outputs that leave it."""
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
        return tuple(output for op, output in zip(workload.tile_ops, outputs, strict=True) if workload.leaves(op))

    def _norm(self, a: Any, eps: float) -> Any:
        """As models write it, in fp32 and rounded at the end."""
        wide = a.float()
        return (wide * self._torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(self._dtype)


def _compiled(torch: Any, run: Callable[[list[dict[str, Any]]], Any]) -> Callable[[list[dict[str, Any]]], Any]:
    """`run` by torch.compile, which happens at its first call."""
    with suppress(ImportError):
        from torch._inductor import select_algorithm

        select_algorithm.PRINT_AUTOTUNE = False  # what it tries would fill the service's log
    compiled: Callable[[list[dict[str, Any]]], Any] = torch.compile(run, mode=COMPILE_MODE, dynamic=False)
    return compiled
