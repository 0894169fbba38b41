"""Tracks which runner works on what: the runners of a target share a queue, and no two may work on the same item.

Claims are in memory: only one process owns the database, and its claims end with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tuner.core.trial.records import Inspection, JobRecord

T = TypeVar("T")
K = TypeVar("K")


class Held(Generic[K, T]):
    """Items of type T that are being worked on, by key."""

    def __init__(self, key_of: Callable[[T], K]) -> None:
        self._key_of = key_of
        self._lock = threading.Lock()
        self._taken: set[K] = set()

    def besides(self, key: K) -> frozenset[K]:
        """The keys of all claimed items except `key`."""
        with self._lock:
            return frozenset(self._taken - {key})

    @contextmanager
    def take(self, choose: Callable[[Collection[K]], T | None]) -> Iterator[T | None]:
        """Claims the item that `choose` returns, given the claimed keys, for the duration of the block."""
        with self._lock:
            found = choose(frozenset(self._taken))
            if found is not None:
                self._taken.add(self._key_of(found))
        try:
            yield found
        finally:
            if found is not None:
                with self._lock:
                    self._taken.discard(self._key_of(found))


@dataclass(frozen=True)
class Claims:
    """Everything that the runners of a service work on."""

    jobs: Held[str, JobRecord] = field(default_factory=lambda: Held(lambda job: job.id))
    inspections: Held[int, Inspection] = field(default_factory=lambda: Held(lambda inspection: inspection.seq))
    #: Ladders by their batch and number.
    ladders: Held[tuple[str, int], tuple[str, int]] = field(default_factory=lambda: Held(lambda ladder: ladder))
