"""The library for poolings on a card: cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_void_p

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.card.cudnn import Cudnn, element_of, handle
from tuner.ops.conv.pooling.op import Function, PoolingOp

#: Source: cudnnTensorFormat_t, cudnnPoolingMode_t, cudnnNanPropagation_t.
_NHWC, _PROPAGATE_NAN = 1, 1
_MODES = {Function.MAX: 0, Function.AVERAGE: 2}


def kernel_of(op: PoolingOp, dtype: Dtype) -> Callable[[int, int, int], None]:
    """A call on CuPy's current stream, by the addresses of the images, a null pointer and the output.

    Raises:
        WorkerError: cuDNN is not installed, or has no such elements.
    """
    library, window = handle(), (op.kernel, op.kernel, op.padding, op.padding, op.stride, op.stride)
    pooling = c_void_p()
    library.call("cudnnCreatePoolingDescriptor", byref(pooling))
    ways = (_MODES[op.function], _PROPAGATE_NAN, *window)
    library.call("cudnnSetPooling2dDescriptor", pooling, *(c_int(one) for one in ways))
    element = element_of(op, dtype)
    read, made = (_tensor(library, shape, element) for shape in (op.in_shape, op.out_shape))
    one, zero = c_float(1.0), c_float(0.0)

    def launch(a: int, w: int, c: int) -> None:
        library.call("cudnnSetStream", library.pointer, c_void_p(cupy.cuda.get_current_stream().ptr))
        images = (byref(one), read, c_void_p(a), byref(zero), made, c_void_p(c))
        library.call("cudnnPoolingForward", library.pointer, pooling, *images)

    return launch


def _tensor(library: Cudnn, shape: tuple[int, int, int, int], element: int) -> c_void_p:
    """A descriptor of images, rows, columns and channels."""
    made, (images, height, width, channels) = c_void_p(), shape
    library.call("cudnnCreateTensorDescriptor", byref(made))
    sizes = (_NHWC, element, images, channels, height, width)
    library.call("cudnnSetTensor4dDescriptor", made, *(c_int(one) for one in sizes))
    return made
