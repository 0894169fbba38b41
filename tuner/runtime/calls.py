"""Launches of one artifact, packed once for each set of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .arrays import view
from .artifact import Artifact
from .launch_list import Launches

#: Sets of arrays whose launches are kept packed: layers of a model, and outputs in turns.
NUM_CACHED = 256


class Calls:
    """Those of an artifact, by the arrays that they were called with."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._bound: dict[tuple[Any, ...], Launches] = {}

    def launches(self, given: Mapping[str, Any]) -> Launches:
        """Packed now or before: arrays are known by where they lie, and what they are.

        Raises:
            RuntimeFailure: as `Artifact.bind`.
        """
        key = tuple((name, view(array)) for name, array in given.items())
        if (found := self._bound.get(key)) is None:
            if len(self._bound) >= NUM_CACHED:
                self._bound.clear()
            # The arrays of one call need not outlive it: a later one with the same addresses has its own.
            found = self._bound[key] = self._artifact.bind(given).without_arrays()
        return found
