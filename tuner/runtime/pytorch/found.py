"""How PyTorch operators find prepared kernels: by the weights, so that graphs of equal layers are equal."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
#: The numbers of all operators.
_numbers = itertools.count(1)


class Found(Generic[T]):
    """The registered objects, by a key that is computed from a call."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[int, T]] = {}
        self._keys: dict[int, Hashable] = {}

    def add(self, key: Hashable, one: T) -> int:
        """Returns its number, which distinguishes it from others with the same key."""
        number = next(_numbers)
        self._by_key.setdefault(key, {})[number] = one
        self._keys[number] = key
        return number

    def forget(self, number: int) -> None:
        """Removes it, if it exists."""
        if (key := self._keys.pop(number, None)) is None:
            return
        of_it = self._by_key[key]
        del of_it[number]
        if not of_it:
            del self._by_key[key]

    def of(self, key: Hashable, number: int = 0) -> Iterator[T]:
        """All objects with a key: the one with the number first, then the most recently registered."""
        of_it = self._by_key.get(key)
        if of_it is None:
            return
        if number in of_it:
            yield of_it[number]
        yield from (of_it[other] for other in reversed(of_it) if other != number)


def lies(tensor: torch.Tensor | None) -> Hashable:
    """The address and the form of a weight; an address alone may have been reused."""
    return None if tensor is None else (tensor.data_ptr(), *form_of(tensor))


def form_of(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """Shape, strides and element type."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def lie(tensors: Iterable[torch.Tensor | None]) -> tuple[Hashable, ...]:
    """`lies` of each."""
    return tuple(map(lies, tensors))
