"""Arrays of any library as addresses and shapes; nothing is imported that the caller has not imported."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Protocol

from tuner.core.problem.activation import canonical
from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.rows.activation import ActivationRow
from tuner.errors import InvalidInput
from tuner.runtime.binding.native import RuntimeFailure, WrongOperand

#: Our name for bits without a type name. Unsigned integers hold the bits of types that the array's library does not
#: have, e.g. bfloat16 in CuPy.
BITS_OF = {16: "bits", **{bits: f"uint{bits}" for bits in (8, 32)}}
_UINTS = {bits: (f"uint{bits}", "|u1" if bits == 8 else f"<u{bits // 8}") for bits in BITS_OF}
#: Our names of types, by the names and type strings of the array libraries.
_NAMES = {name: BITS_OF[bits] for bits, names in _UINTS.items() for name in names}
_NAMES |= {
    name: row.array_name
    for row in ELEMENTS.values()
    for name in (row.array_name, f"torch.{row.array_name}", row.typestr)
    if name
}
_BYTES = {name: bits // 8 for bits, name in BITS_OF.items()}
_BYTES |= {row.array_name: row.size_bytes for row in ELEMENTS.values()}
#: By DLPack's type code and bits; unsigned integers have code 1. Source: dlpack.h, DLDataTypeCode.
_DLPACK_TYPES = {(1, bits): name for bits, name in BITS_OF.items()}
_DLPACK_TYPES |= {row.dlpack: row.array_name for row in ELEMENTS.values() if row.dlpack}
#: DLPack's devices: memory of the host, of a card, and managed memory. Source: dlpack.h, DLDeviceType.
_DLPACK_DEVICES = {1: "cpu", 2: "cuda:{}", 13: "cuda:{}"}


class Library(Protocol):
    """The functions of an array library that are needed besides its arrays."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """An array of `like`'s type on its device, uninitialised."""

    def empty_bytes(self, num_bytes: int, like: Any) -> Any:
        """Bytes on `like`'s device; at a multiple of at least 256 if the library aligns that way."""

    def current_stream(self, like: Any) -> int:
        """The address of the stream that the library currently uses."""

    def activate(self, z: Any, activation: str) -> Any:
        """The activation of an array."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The address and description of an array."""

    address: int
    shape: tuple[int, ...]
    #: ``float16``, ``bfloat16``, ``float32``, ``int32``, or ``bits`` if the library has no name for it.
    dtype: str
    #: ``cpu``, or ``cuda:`` and its number; empty if the library does not report it.
    device: str = field(default="", compare=False)
    #: Whether its library forbids writing.
    is_read_only: bool = field(default=False, compare=False)
    #: Elements from one index to the next, for each dimension; empty if it is contiguous.
    steps: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The address after its last byte."""
        if self.steps and all(self.shape):
            last = sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True))
            return self.address + (last + 1) * _BYTES[self.dtype]
        return self.address + math.prod(self.shape) * _BYTES[self.dtype]

    def overlaps(self, other: View) -> bool:
        """Whether both may share a byte. Lines of one array may be in the gaps of another one's."""
        if not (self.address < other.end and other.address < self.end):
            return False
        if not self.steps or self.steps != other.steps or self.dtype != other.dtype:
            return True
        size, (*_, step, _) = _BYTES[self.dtype], self.steps
        apart = (other.address - self.address) % (step * size)
        return apart < self.shape[-1] * size or step * size - apart < other.shape[-1] * size


class NotAnArray(WrongOperand, TypeError):
    """An argument supports no known protocol, or is not contiguous; the message says which."""


def library_name(kind: type) -> str:
    """``torch`` or ``cupy``, also for subclasses of their arrays, e.g. vLLM's parameters; empty for other libraries."""
    names = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((name for name in names if name in ("torch", "cupy")), "")


def address_of(array: Any) -> int:
    """The device address of a contiguous array's first element, by the fastest available way.

    Raises:
        NotAnArray: it is not contiguous, or not an array.
    """
    if (pointer := getattr(array, "data_ptr", None)) is not None:  # PyTorch
        if not array.is_contiguous():
            raise NotAnArray("the array is not contiguous: pass .contiguous()")
        return int(pointer())
    data = getattr(array, "data", None)
    if (address := getattr(data, "ptr", None)) is not None:  # CuPy
        if not array.flags.c_contiguous:
            raise NotAnArray("the array is not contiguous: pass a contiguous copy")
        return int(address)
    return view(array).address


def matrix_reader(like: Any) -> Callable[[Any, int], int]:
    """A function that reads the address of a contiguous matrix with a given number of two-byte columns, quickly for
    arrays like `like`.

    It raises NotAnArray as `address_of` does.
    """
    name = library_name(type(like))
    return _address_in_torch if name == "torch" else _address_in_cupy if name == "cupy" else _address_of_matrix


def kind_reader(like: Any) -> Callable[[Any], Any]:
    """A function that quickly reads element type and device of arrays like `like`; it returns None if their
    library has no fast way, or for an array of another library."""
    name = library_name(type(like))
    asked = {"torch": ("dtype", "device"), "cupy": ("dtype", "data.device_id")}.get(name)
    if asked is None:
        return lambda array: None
    read, kind = attrgetter(*asked), type(like).__module__
    return lambda array: read(array) if type(array).__module__ == kind else None


def _address_in_torch(matrix: Any, columns: int) -> int:
    if not matrix.is_contiguous():
        raise NotAnArray("the array is not contiguous: pass .contiguous()")
    return matrix.data_ptr()  # type: ignore[no-any-return]


def _address_in_cupy(matrix: Any, columns: int) -> int:
    # Flags are a separate object, which costs half a microsecond. A single row may have any row stride.
    if matrix.strides != (2 * columns, 2):
        return address_of(matrix)
    return matrix.data.ptr  # type: ignore[no-any-return]


def _address_of_matrix(matrix: Any, columns: int) -> int:
    return address_of(matrix)


def view(array: Any, *, has_lines: bool = False) -> View:
    """An array from `__cuda_array_interface__` or DLPack. `has_lines`: it has several dimensions, and the elements of
    the last one are a line; lines, and slices of the first dimension, may have gaps.

    Raises:
        NotAnArray: it has neither, or it is not contiguous.
    """
    found = _view(array)
    if not found.steps:
        return found
    if has_lines and (of_lines := _of_lines(found)):
        return of_lines
    copy = ".contiguous()" if library_name(type(array)) == "torch" else "a contiguous copy"
    raise NotAnArray(f"the array is not contiguous: pass {copy}")


def named_view(name: str, array: Any, *, has_lines: bool = False) -> View:
    """Same as `view`, for an operand with that name: the error message begins with the name."""
    try:
        return view(array, has_lines=has_lines)
    except NotAnArray as error:
        raise NotAnArray(f"{name}: {error}") from error


def _of_lines(found: View) -> View | None:
    """Whether elements of a line are adjacent, lines have even steps, and each slice of the first dimension has all
    of its lines before the next one's. A dimension of one has the step of the dimension before it."""
    steps = list(found.steps)
    for place, size in enumerate(found.shape[1:-1], 1):
        steps[place] = steps[place] if size > 1 else steps[place - 1]
    (first, *middle, size), (page, *inside, unit) = found.shape, steps
    if not middle or unit != 1 or (line := inside[-1]) < size or page % line:
        return None
    if tuple(inside) != tuple(line * step for step in _steps(tuple(middle))):
        return None
    return replace(found, steps=tuple(steps)) if first == 1 or page >= line * math.prod(middle) else None


def _view(array: Any) -> View:
    if library_name(type(array)) == "torch":  # its interface refuses bfloat16
        dtype, device = _name(str(array.dtype)), str(array.device)
        steps = () if array.is_contiguous() else tuple(array.stride())
        return View(address=array.data_ptr(), shape=tuple(array.shape), dtype=dtype, device=device, steps=steps)
    if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        (address, is_read_only), number = interface["data"], getattr(getattr(array, "device", None), "id", None)
        size = int(interface["typestr"][2:])
        if odd := [stride for stride in strides or () if stride % size]:
            raise NotAnArray(
                f"a stride is {odd[0]} bytes, which is not a whole number of elements: pass a contiguous copy"
            )
        return View(
            address=address,
            shape=shape,
            dtype=_name(interface["typestr"]),
            device="" if number is None else f"cuda:{number}",  # CuPy reports it, the interface does not
            is_read_only=is_read_only,
            steps=_gaps(shape, None if strides is None else tuple(stride // size for stride in strides)),
        )
    if hasattr(array, "__dlpack__"):
        return _dlpack_view(array)
    raise NotAnArray(f"a {type(array).__name__} has no __cuda_array_interface__ and no __dlpack__: pass a device array")


def _name(dtype: str) -> str:
    if dtype not in _NAMES:
        raise NotAnArray(f"elements of {dtype} are not among {', '.join(sorted(set(_NAMES.values())))}")
    return _NAMES[dtype]


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next, for each dimension of a contiguous array."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def _gaps(shape: tuple[int, ...], steps: tuple[int, ...] | None) -> tuple[int, ...]:
    """Elements from one index to the next, but empty if all are adjacent; for a dimension of one they are arbitrary."""
    right = _steps(shape)
    if steps is None or all(one == of or size == 1 for size, one, of in zip(shape, steps, right, strict=True)):
        return ()
    return steps


class _DLTensor(ctypes.Structure):
    """Source: dlpack.h, DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _dlpack_view(array: Any) -> View:
    # The stream -1: no synchronisation. The caller's stream is the one that the launch is enqueued on.
    capsule = array.__dlpack__(stream=-1) if type(array).__module__ != "numpy" else array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    found = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    shape = tuple(found.shape[: found.ndim])
    if (kind := (found.code, found.bits)) not in _DLPACK_TYPES or found.lanes != 1:
        raise NotAnArray(f"unsupported DLPack type (code, bits) = {kind}; supported: {sorted(_DLPACK_TYPES)}")
    if found.device_type not in _DLPACK_DEVICES:
        raise NotAnArray(f"it is on DLPack device type {found.device_type}: pass an array of a CUDA device")
    device = _DLPACK_DEVICES[found.device_type].format(found.device_id)
    address = (found.data or 0) + found.byte_offset
    steps = _gaps(shape, tuple(found.strides[: found.ndim]) if found.strides else None)
    return View(address=address, shape=shape, dtype=_DLPACK_TYPES[kind], device=device, steps=steps)


class _Torch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        return self._torch.empty(shape, dtype=like.dtype, device=like.device)

    def empty_bytes(self, num_bytes: int, like: Any) -> Any:
        return self._torch.empty(num_bytes, dtype=self._torch.uint8, device=like.device)

    def current_stream(self, like: Any) -> int:
        if like.device.type != "cuda":
            why = "" if self._torch.backends.cuda.is_built() else ", and this PyTorch was built without CUDA"
            raise RuntimeFailure(-1, f"the tensors are on {like.device}{why}: pass tensors of a CUDA device")
        return int(self._torch.cuda.current_stream(like.device).cuda_stream)

    def activate(self, z: Any, activation: str) -> Any:
        return _row(activation).torch(self._torch.nn.functional, z)


class _Cupy:
    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        return self._cupy.empty(shape, dtype=like.dtype)

    def empty_bytes(self, num_bytes: int, like: Any) -> Any:
        return self._cupy.empty(num_bytes, dtype=self._cupy.uint8)

    def current_stream(self, like: Any) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def activate(self, z: Any, activation: str) -> Any:
        wide = z.astype(self._cupy.float32)
        return _row(activation).host(self._cupy, wide).astype(z.dtype)


def _row(activation: str) -> ActivationRow:
    try:
        return canonical(activation).row
    except InvalidInput as error:
        raise RuntimeFailure(-1, str(error)) from error


def library_of(array: Any) -> Library | None:
    """The functions of the array's own library; None for an unknown library."""
    name = library_name(type(array))
    module = sys.modules.get(name)
    if name == "torch" and module is not None:
        return _Torch(module)
    if name == "cupy" and module is not None:
        return _Cupy(module)
    return None
