"""Calls of PyTorch on the problem's own buffers, captured in a CUDA graph of PyTorch, with a separate memory pool
for its outputs. A sample reads as much from DRAM as a sample of any plan kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.errors import WorkerError

from ..tensors.data import ProblemData
from ..tensors.op_data import RunOperands
from ..tensors.outputs import bits_type

#: The results of a call, by the ops whose outputs are outputs of the workload.
Call = Callable[[Any], Mapping[str, Any]]


def imported_torch() -> Any:
    """Raises:
    WorkerError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise WorkerError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    return torch


class TorchGraph:
    """A captured chain; `launch` has the same interface as a CuPy graph's, so a timer can use both in the same
    rounds."""

    def __init__(self, torch: Any, data: ProblemData, operands_of: Callable[[RunOperands], Any], call: Call) -> None:
        """Warms up and captures; `torch` is the module. `call` gets what `operands_of` makes of a slot."""
        self._torch, self._data, self._operands_of, self._call = torch, data, operands_of, call
        operands = [operands_of(data.slot_ops(slot)) for slot in range(data.chain_length)]
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.no_grad():
            with torch.cuda.stream(side):  # libraries create their handles and workspaces outside of a capture
                call(operands[0])
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=side):
                self._outputs = [call(of_slot) for of_slot in operands]
        self._operands_of_slots = operands  # the graph reads them

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.ptr)):
            self._graph.replay()

    def output(self, slot: int) -> Any:
        """The last op's output [m, n] of one run of the last chain, as the bits of its elements in a CuPy array."""
        name, output = [*self._outputs[slot].items()][-1]
        return self._bits(output, self._data.workload.op_named(name).stored_in(self._data.workload.dtype))

    def outputs_of(self, ops: RunOperands) -> dict[str, Any]:
        """For each op with an output of the workload, the bits [m, n] that one run on these operands writes, in a
        CuPy array. It runs on the default stream, and is waited for."""
        workload = self._data.workload
        with self._torch.no_grad():
            outputs = self._call(self._operands_of(ops))
        self._torch.cuda.synchronize()
        return {
            name: self._bits(output, workload.op_named(name).stored_in(workload.dtype))
            for name, output in outputs.items()
        }

    def _bits(self, output: Any, dtype: Dtype) -> Any:
        #: Signed integers of an element's size, which both libraries support.
        bits = output.contiguous().view(getattr(self._torch, f"int{dtype.row.bits}"))
        return cupy.from_dlpack(bits).view(bits_type(dtype))


def torch_tensor(torch: Any, array: Any, dtype_name: str) -> Any:
    """A CuPy array of bits as a tensor with that element type, over the same memory."""
    return torch.from_dlpack(array.view(f"int{8 * array.itemsize}")).view(getattr(torch, dtype_name))
