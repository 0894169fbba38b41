"""Names that a JSON object has twice, which readers interpret differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


class Twice(ValueError):
    """A name that an object has twice."""


def repeated(pairs: Sequence[tuple[str, Any]]) -> str | None:
    """The first name that an object has twice; None if there is none."""
    if len(dict(pairs)) == len(pairs):
        return None
    counts = Counter(name for name, _ in pairs)
    return next(name for name, count in counts.items() if count > 1)


def each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for `json.loads`.

    Raises:
        Twice: it has a name twice.
    """
    if (name := repeated(pairs)) is not None:
        raise Twice(name)
    return dict(pairs)
