"""The library for convolutions on a card: cuDNN, whose epilogue adds a residual and a bias, and applies ReLU."""

from __future__ import annotations

from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.card.cudnn import CudnnConv, handle
from tuner.ops.conv.op import ConvOp
from tuner.workers.source.launch_args import OpBuffers


def call_of(op: ConvOp, dtype: Dtype, first: OpBuffers) -> CudnnConv:
    """cuDNN's call for an op, with the bias that all slots share.

    Raises:
        WorkerError: cuDNN is not installed, or has no plan for the op.
    """
    return CudnnConv(handle(), op, dtype, first.bias)
