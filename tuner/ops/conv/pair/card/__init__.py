"""The library for a pair of convolutions on a card: cuDNN, one call after the other."""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.activation import Activation
from tuner.errors import WorkerError
from tuner.ops.conv.card.cudnn import MOST_WORKSPACE_BYTES, CudnnConv, handle
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.workers.gpu.library.op_library import OpLibrary
from tuner.workers.gpu.library.vendor import Vendor
from tuner.workers.gpu.tensors.op_data import Arrays, OpData
from tuner.workers.gpu.tensors.outputs import bits_type


class CudnnPair(OpLibrary):
    """Two calls, each with bias and ReLU; a choice is a plan of each."""

    def __init__(self, op: ConvPairOp, data: OpData) -> None:
        """Requests plans.

        Raises:
            WorkerError: cuDNN is not installed, has no plan, or does not fuse the activation.
        """
        if op.activation not in (Activation.RELU, Activation.IDENTITY):
            raise WorkerError(f"{op.name}: cuDNN does not fuse {op.activation}: tune two convolutions")
        dtype = data.workload.dtype
        self._op, self._version = op, handle().version
        self._calls = [CudnnConv(handle(), one, dtype, 0) for one in (op.first, op.second)]
        self.num_choices = self._calls[0].num_algorithms * self._calls[1].num_algorithms
        self._between = cupy.empty((op.first.m, op.between), dtype=bits_type(dtype))
        self._workspace = cupy.empty(MOST_WORKSPACE_BYTES, dtype=cupy.uint8)

    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """Both calls over a run's arrays."""
        name, between = self._op.name, self._between
        convs = ((self._op.first, arrays[self._op.source], between), (self._op.second, between, arrays[name]))
        choices = divmod(self.choice, self._calls[1].num_algorithms)
        for call, algorithm, (conv, source, out) in zip(self._calls, choices, convs, strict=True):
            a, w, c = (int(one.data.ptr) for one in (source, arrays[f"{conv.name}.w"], out))
            call.launch(
                a,
                w,
                c,
                0,
                int(self._workspace.data.ptr),
                stream,
                algorithm=algorithm,
                bias=int(arrays[f"{conv.name}.bias"].data.ptr) if self._op.bias else 0,
            )

    def recipe(self) -> str:
        """How this calls the library."""
        return f"two convolutions by cuDNN {self._version}"

    def poison(self) -> None:
        """Sets the images between, and the workspace, to NaN."""
        self._between.fill(0x7FFF)


def baseline_of(op: ConvPairOp, data: OpData, slots: list[Arrays], vendor: Vendor, tools: Any) -> CudnnPair:
    """cuDNN's calls for an op."""
    return CudnnPair(op, data)
