"""How operators of PyTorch find what was prepared: by the weights, so that graphs of equal layers are equal."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
#: The numbers of all operators.
_numbers = itertools.count(1)


class Found(Generic[T]):
    """What was registered, by a key that its calls have."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[int, T]] = {}
        self._keys: dict[int, Hashable] = {}

    def add(self, key: Hashable, one: T) -> int:
        """Its number, by which it is told from others of the same key."""
        number = next(_numbers)
        self._by_key.setdefault(key, {})[number] = one
        self._keys[number] = key
        return number

    def forget(self, number: int) -> None:
        """Lets go of it, if it is there."""
        if (key := self._keys.pop(number, None)) is None:
            return
        of_it = self._by_key[key]
        del of_it[number]
        if not of_it:
            del self._by_key[key]

    def of(self, key: Hashable, number: int = 0) -> Iterator[T]:
        """All of a key: that of the number first, then what was registered last."""
        of_it = self._by_key.get(key)
        if of_it is None:
            return
        if number in of_it:
            yield of_it[number]
        yield from (of_it[other] for other in reversed(of_it) if other != number)


def lies(tensor: torch.Tensor | None) -> Hashable:
    """Where a weight lies and in what form, since its address may have been another's."""
    return None if tensor is None else (tensor.data_ptr(), *form_of(tensor))


def form_of(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """Shape, strides and element type."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def lie(tensors: Iterable[torch.Tensor | None]) -> tuple[Hashable, ...]:
    """`lies` of each."""
    return tuple(map(lies, tensors))
