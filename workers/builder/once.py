"""Computes a value once if several threads request it; the others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Once(Generic[K, T]):
    """Values that are being computed, by key. Results are not kept; caches do that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[K, Future[T]] = {}

    def get(self, key: K, make: Callable[[], T]) -> tuple[T, bool]:
        """The result of `make`, and whether another thread computed it. An exception is raised in all of these
        threads."""
        with self._lock:
            theirs = self._making.get(key)
            if theirs is None:
                ours = self._making[key] = Future[T]()
        if theirs is not None:
            return theirs.result(), True
        try:
            made = make()
        except BaseException as error:
            ours.set_exception(error)
            raise
        else:
            ours.set_result(made)
            return made, False
        finally:
            with self._lock:
                del self._making[key]
