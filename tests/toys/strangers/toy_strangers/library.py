"""A baseline of one naive kernel, for both kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from toy_strangers.common import element
from tuner.extend import Arrays, Dtype, OpLibrary

THREADS = 256


class Naive(OpLibrary):
    """One kernel, ``naive``, with one CTA per row."""

    def __init__(self, text: str, dtype: Dtype, rows: int, arguments: Callable[[Arrays], tuple[Any, ...]]) -> None:
        self._kernel = cupy.RawModule(code=element(dtype) + text).get_function("naive")
        self._rows, self._arguments = rows, arguments

    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """Enqueues one run on the current stream."""
        self._kernel((self._rows,), (THREADS,), self._arguments(arrays))

    def recipe(self) -> str:
        """How to call it."""
        return "one naive kernel"
