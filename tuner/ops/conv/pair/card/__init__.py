"""The library for a pair of convolutions on a card: cuDNN, one call after the other, each followed by an elementwise
kernel if cuDNN does not fuse the activation.
"""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.activation import Activation
from tuner.ops.conv.card.cudnn import MOST_WORKSPACE_BYTES, CudnnConv, handle
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.workers.gpu.library.op_library import OpLibrary
from tuner.workers.gpu.library.vendor import Vendor
from tuner.workers.gpu.tensors.op_data import Arrays, OpData
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.tools import kernel_of

#: Activations that cuDNN's calls apply.
_FUSED = (Activation.RELU, Activation.IDENTITY)
#: Elements of a step of a `tuner_epilogue` thread; threads of a CTA, and the maximum number of CTAs of a launch.
_WIDTH, _THREADS, _MAX_CTAS = 8, 256, 4096


class CudnnPair(OpLibrary):
    """Two calls, each with bias and ReLU; a choice is a plan of each."""

    def __init__(self, op: ConvPairOp, data: OpData, tools: Any) -> None:
        """Requests plans; `tools` is the module of `tools_source`.

        Raises:
            WorkerError: cuDNN is not installed, or has no plan.
        """
        dtype = data.workload.dtype
        is_fused = op.activation in _FUSED
        self._activation = None if is_fused else tools.get_function(kernel_of("tuner_epilogue", dtype))
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
            added = int(arrays[conv.residual_source].data.ptr) if conv.residual else 0
            call.launch(
                a,
                w,
                c,
                added,
                int(self._workspace.data.ptr),
                stream,
                algorithm=algorithm,
                bias=int(arrays[f"{conv.name}.bias"].data.ptr) if self._op.bias else 0,
            )
            if self._activation is not None:
                self._activate(self._activation, conv, c)

    def _activate(self, function: Any, conv: ConvOp, out: int) -> None:
        """Applies the activation in place, on the current stream; `out` is an address."""
        no_bias = no_residual = no_factors = 0
        args = (
            *map(cupy.uint64, (out, out, no_bias, no_residual, no_factors)),
            cupy.uint32(conv.m),
            cupy.uint32(conv.filters),
            cupy.int32(conv.activation.row.number),
            cupy.int32(0),  # not gated
        )
        function((min(-(-conv.m * conv.filters // _WIDTH // _THREADS), _MAX_CTAS),), (_THREADS,), args)

    def recipe(self) -> str:
        """How this calls the library."""
        return f"two convolutions by cuDNN {self._version}"

    def poison(self) -> None:
        """Sets the images between, and the workspace, to NaN."""
        self._between.fill(0x7FFF)


def baseline_of(op: ConvPairOp, data: OpData, slots: list[Arrays], vendor: Vendor, tools: Any) -> CudnnPair:
    """cuDNN's calls for an op."""
    return CudnnPair(op, data, tools)
