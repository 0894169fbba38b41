"""The few calls of cuDNN's graph API that one fused convolution needs, through ctypes.

Source: cuDNN backend API documentation (descriptors, attributes and enumerators by number, as in cudnn_graph.h).
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import byref, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.errors import WorkerError
from tuner.ops.conv.images import ImageOp
from tuner.ops.conv.op import ConvOp

_LIBRARY = "libcudnn.so.9"
#: Types of attributes, by their types in C. Source: cudnnBackendAttributeType_t.
_HANDLE, _DATA_TYPE, _BOOLEAN, _INT64, _FLOAT, _POINTER = 0, 1, 2, 3, 4, 6
_CONVOLUTION_MODE, _HEURISTIC_MODE, _POINTWISE_MODE, _DESCRIPTOR = 7, 8, 14, 15
_C_TYPES = {
    **dict.fromkeys((_HANDLE, _POINTER, _DESCRIPTOR), c_void_p),
    **dict.fromkeys((_DATA_TYPE, _CONVOLUTION_MODE, _HEURISTIC_MODE, _POINTWISE_MODE), c_int),
    _BOOLEAN: c_bool,
    _INT64: c_int64,
    _FLOAT: c_float,
}
#: Descriptors. Source: cudnnBackendDescriptorType_t.
_POINTWISE, _CONVOLUTION, _ENGINE_CONFIG, _HEURISTIC, _PLAN = 0, 1, 3, 4, 5
_CONVOLUTION_FORWARD, _OP_POINTWISE, _GRAPH, _PACK, _TENSOR = 10, 13, 15, 16, 17
#: Element types, by their names in other CUDA libraries, and the type of the sums. Source: cudnnDataType_t.
_ELEMENTS, _FP32 = {"CUDA_R_16F": 2, "CUDA_R_16BF": 9}, 0
_CROSS_CORRELATION, _ADD, _RELU = 1, 0, 100
#: The heuristic's best guesses first, then the mode that nearly always runs. Source: cudnnBackendHeurMode_t.
_MODES = (3, 1, 2)
#: Maximum number of plans, and the memory that each may use.
_MOST_PLANS, MOST_WORKSPACE_BYTES = 8, 32 * 2**20
#: Ids of tensors in a graph: images, filters, output, bias, residual; then the tensors between its operations.
_X, _W, _Y, _BIAS, _ADDED, _FIRST_BETWEEN = 1, 2, 3, 4, 5, 10


class Cudnn:
    """A library handle."""

    def __init__(self) -> None:
        """Loads the library.

        Raises:
            WorkerError: it is not installed, or does not support the card.
        """
        self._lib = _load()
        self._lib.cudnnGetVersion.restype = c_size_t
        self.version = int(self._lib.cudnnGetVersion())
        self.pointer = c_void_p()
        self.call("cudnnCreate", byref(self.pointer))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls `name`, and raises WorkerError if it fails."""
        if (status := getattr(self._lib, name)(*arguments)) != 0:
            raise WorkerError(f"{name} failed with cudnnStatus {status}")

    def destroy(self, descriptor: c_void_p) -> None:
        """Destroys a descriptor; a null pointer is ignored."""
        self._lib.cudnnBackendDestroyDescriptor(descriptor)


class Descriptor:
    """A descriptor of cuDNN; it keeps the descriptors that it refers to alive."""

    def __init__(self, library: Any, kind: int, *attributes: tuple[int, int, Sequence[Any]]) -> None:
        """`attributes` has the name, the type and the values of each attribute.

        Raises:
            WorkerError: the library refuses an attribute, or their combination.
        """
        self._library, self._parts = library, [values for _, _, values in attributes]
        self.pointer = c_void_p()
        library.call("cudnnBackendCreateDescriptor", c_int(kind), byref(self.pointer))
        for name, of, values in attributes:
            held = (_C_TYPES[of] * len(values))(*(getattr(one, "pointer", one) for one in values))
            library.call("cudnnBackendSetAttribute", self.pointer, c_int(name), c_int(of), c_int64(len(values)), held)
        if attributes:
            library.call("cudnnBackendFinalize", self.pointer)

    def read(self, name: int, of: int, room: Sequence[Any]) -> list[Any]:
        """An attribute's values, as many as exist and fit in `room`; for descriptors, those in `room` are filled."""
        held = (_C_TYPES[of] * len(room))(*(getattr(one, "pointer", one) for one in room))
        count = c_int64(0)
        self._library.call(
            "cudnnBackendGetAttribute", self.pointer, c_int(name), c_int(of), c_int64(len(room)), byref(count), held
        )
        found = range(min(int(count.value), len(room)))
        return [room[i] if of == _DESCRIPTOR else held[i] for i in found]

    def __del__(self) -> None:
        self._library.destroy(self.pointer)


class CudnnConv:
    """Out = relu(conv(images, filters) + added + bias) by the library; the last three only if the op has them."""

    def __init__(self, library: Cudnn, op: ConvOp, dtype: Dtype, bias: int) -> None:
        """Requests plans; `bias` is the address of the bias.

        Raises:
            WorkerError: the library has no plan.
        """
        self._library, self._bias, self._has_added = library, bias, op.residual
        self._plans = plans_of(library, graph_of(library, op, dtype))
        if not self._plans:
            raise WorkerError(f"{op.name}: cuDNN {library.version} offers no plan for a {op.describe()}")

    @property
    def num_algorithms(self) -> int:
        """Number of plans, the best guess first."""
        return len(self._plans)

    def recipe(self, op: ConvOp, *, algorithm: int) -> None:
        """None, since cuDNN's plans have no name by which others could request them."""

    def launch(
        self, a: int, w: int, c: int, residual: int, workspace: int, stream: int, *, algorithm: int = 0, bias: int = 0
    ) -> None:
        """Enqueues the convolution by the `algorithm`-th plan; addresses are on the device. `bias` is that of this
        launch, if not all slots share it.

        Raises:
            WorkerError: the library refuses the plan.
        """
        bias = bias or self._bias
        at = {_X: a, _W: w, _Y: c, **({_BIAS: bias} if bias else {})}
        if self._has_added:
            at[_ADDED] = residual
        pack = Descriptor(
            self._library,
            _PACK,
            (1000, _INT64, list(at)),
            (1001, _POINTER, list(at.values())),
            (1003, _POINTER, [workspace]),
        )
        self._library.call("cudnnSetStream", self._library.pointer, c_void_p(stream))
        self._library.call("cudnnBackendExecute", self._library.pointer, self._plans[algorithm].pointer, pack.pointer)


@cache
def handle() -> Cudnn:
    """The handle of this process.

    Raises:
        WorkerError: cuDNN is not installed, or does not support the card.
    """
    return Cudnn()


def element_of(op: ImageOp, dtype: Dtype) -> int:
    """The library's number of an element type.

    Raises:
        WorkerError: the library is not used for it.
    """
    vendor = dtype.row.library
    if vendor is None or vendor.name not in _ELEMENTS:
        raise WorkerError(f"{op.name}: cuDNN is not used for images of {dtype}")
    return _ELEMENTS[vendor.name]


def operations_of(library: Any, op: ConvOp, dtype: Dtype) -> list[Descriptor]:
    """The convolution and the library's epilogue operations, each on the fp32 result of the one before.

    Raises:
        WorkerError: the element type is not supported, or the library refuses a size.
    """
    element, filters = element_of(op, dtype), op.filters
    image = (op.images, filters, op.out_height, op.out_width)
    steps: list[tuple[int, Descriptor | None]] = []
    if op.residual:
        steps.append((_ADD, _tensor(library, _ADDED, element, image)))
    if op.bias:
        steps.append((_ADD, _tensor(library, _BIAS, element, (1, filters, 1, 1))))
    if op.activation is Activation.RELU:
        steps.append((_RELU, None))

    def left(number: int) -> Descriptor:
        is_last = number == len(steps)
        name = _Y if is_last else _FIRST_BETWEEN + number
        return _tensor(library, name, element if is_last else _FP32, image, is_virtual=not is_last)

    out = left(0)
    found = [_convolution(library, op, element, out)]
    for number, (mode, other) in enumerate(steps, start=1):
        source, out = out, left(number)
        found.append(_pointwise(library, mode, source, other, out))
    return found


def graph_of(library: Cudnn, op: ConvOp, dtype: Dtype) -> Descriptor:
    """The operations as one graph."""
    operations = operations_of(library, op, dtype)
    return Descriptor(library, _GRAPH, (800, _HANDLE, [library]), (801, _DESCRIPTOR, operations))


def plans_of(library: Cudnn, graph: Descriptor) -> list[Descriptor]:
    """The library's proposed plans that can run, the best guess first, without duplicates."""
    plans = list[Descriptor]()
    for mode in _MODES:
        try:
            heuristic = Descriptor(library, _HEURISTIC, (201, _DESCRIPTOR, [graph]), (200, _HEURISTIC_MODE, [mode]))
        except WorkerError:
            continue  # a mode that does not exist for this graph
        room = [Descriptor(library, _ENGINE_CONFIG) for _ in range(_MOST_PLANS)]
        for config in heuristic.read(202, _DESCRIPTOR, room):
            if len(plans) < _MOST_PLANS and (plan := _plan_of(library, config)) is not None:
                plans.append(plan)
    return plans


def _plan_of(library: Cudnn, config: Descriptor) -> Descriptor | None:
    try:
        plan = Descriptor(library, _PLAN, (400, _HANDLE, [library]), (401, _DESCRIPTOR, [config]))
    except WorkerError:
        return None  # proposed, but not available
    (workspace_bytes,) = plan.read(402, _INT64, [0])
    return plan if workspace_bytes <= MOST_WORKSPACE_BYTES else None


def _tensor(
    library: Any, name: int, element: int, sizes: tuple[int, int, int, int], *, is_virtual: bool = False
) -> Descriptor:
    """[images, channels, rows, columns], with the channels contiguous."""
    _, channels, rows, columns = sizes
    strides = (rows * columns * channels, 1, columns * channels, channels)
    attributes = [(901, _DATA_TYPE, [element]), (902, _INT64, sizes), (903, _INT64, strides), (906, _INT64, [name])]
    attributes += [(900, _INT64, [16]), (907, _BOOLEAN, [is_virtual])]
    return Descriptor(library, _TENSOR, *attributes)


def _convolution(library: Any, op: ConvOp, element: int, out: Descriptor) -> Descriptor:
    padding, strides = [op.padding] * 2, [op.stride] * 2
    how = Descriptor(
        library,
        _CONVOLUTION,
        (106, _INT64, [2]),
        (100, _DATA_TYPE, [_FP32]),
        (101, _CONVOLUTION_MODE, [_CROSS_CORRELATION]),
        (105, _INT64, padding),
        (104, _INT64, padding),
        (102, _INT64, [1, 1]),
        (103, _INT64, strides),
    )
    images = _tensor(library, _X, element, (op.images, op.channels, op.height, op.width))
    filters = _tensor(library, _W, element, (op.filters, op.channels, op.kernel, op.kernel))
    return Descriptor(
        library,
        _CONVOLUTION_FORWARD,
        (702, _DESCRIPTOR, [how]),
        (704, _DESCRIPTOR, [images]),
        (703, _DESCRIPTOR, [filters]),
        (705, _DESCRIPTOR, [out]),
        (700, _FLOAT, [1.0]),
        (701, _FLOAT, [0.0]),
    )


def _pointwise(library: Any, mode: int, source: Descriptor, other: Descriptor | None, out: Descriptor) -> Descriptor:
    how = Descriptor(library, _POINTWISE, (0, _POINTWISE_MODE, [mode]), (1, _DATA_TYPE, [_FP32]))
    operands = [(750, _DESCRIPTOR, [how]), (751, _DESCRIPTOR, [source])]
    operands += [] if other is None else [(752, _DESCRIPTOR, [other])]
    return Descriptor(library, _OP_POINTWISE, *operands, (753, _DESCRIPTOR, [out]))


@cache
def _load() -> ctypes.CDLL:
    """The library: the one already loaded in the process, or that of its package.

    Raises:
        WorkerError: it is not installed.
    """
    package = importlib.util.find_spec("nvidia.cudnn") if importlib.util.find_spec("nvidia") else None
    folders = [Path(place) / "lib" for place in (package.submodule_search_locations or () if package else ())]
    for path in (_LIBRARY, *(str(folder / _LIBRARY) for folder in folders)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise WorkerError(f"cuDNN cannot be loaded: no {_LIBRARY}; install nvidia-cudnn, or PyTorch, which includes it")
