"""Tensors of checkpoints on the host, from any library, as NumPy arrays of their bits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.errors import InvalidInput

Array = np.ndarray[Any, Any]

#: Element types that NumPy does not have, or that kernels support, by the libraries' names.
_TYPES = {one.row.array_name: one for one in Dtype}


def bits_of(name: str, tensor: Any) -> tuple[Array, Dtype | None]:
    """Elements of a kernel's types as unsigned integers of their size, with the type; other tensors as their values.

    Raises:
        InvalidInput: it is on a device, or of another type.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    if "torch" in sys.modules and isinstance(tensor, sys.modules["torch"].Tensor):
        if tensor.device.type != "cpu":
            raise InvalidInput(name, f"is on {tensor.device}", "convert it on the host, before it is copied")
        tensor = tensor.detach().contiguous()
        if kind in _TYPES:
            tensor = tensor.view(getattr(sys.modules["torch"], _TYPES[kind].row.bits_name))
        try:
            tensor = tensor.numpy()
        except TypeError as error:  # a type that NumPy lacks
            raise InvalidInput(name, f"has elements of {kind}", "give a type that kernels support") from error
    array = np.ascontiguousarray(tensor)
    if kind in _TYPES:
        return array.view(_TYPES[kind].row.bits_name), _TYPES[kind]
    return array, None


def known(bits: Array, dtype: Dtype | None) -> Array:
    """The values, in float32 or wider."""
    return bits if dtype is None else np.asarray(dtype.row.from_bits(np, bits), dtype=np.float32)


def nibbles(words: Array) -> Array:
    """The eight 4-bit codes of each int32 of a row, lowest bits first: [rows, 8 columns]."""
    held = np.ascontiguousarray(words).view(np.uint8)
    found = np.empty((*held.shape, 2), np.uint8)
    np.bitwise_and(held, 15, out=found[:, :, 0])
    np.right_shift(held, 4, out=found[:, :, 1])
    return found.reshape(words.shape[0], -1)


def words_of(codes: Array) -> Array:
    """Inverse of `nibbles`."""
    eights = codes.reshape(codes.shape[0], -1, 8).astype(np.uint32)
    words = sum((eights[:, :, place] << np.uint32(4 * place) for place in range(8)), np.uint32(0))
    return np.asarray(words, dtype=np.uint32).view(np.int32)
