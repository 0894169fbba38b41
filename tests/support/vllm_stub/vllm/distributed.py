"""The ranks of a tensor-parallel group; the other rank's share is taken from `others`."""

from __future__ import annotations

from typing import Any

WORLD_SIZE = 1
others: list[Any] = []


def get_tensor_model_parallel_world_size() -> int:
    return WORLD_SIZE


def tensor_model_parallel_all_reduce(input_: Any) -> Any:
    return input_ + others.pop(0) if others else input_
