"""Two nested documents side by side: one row per leaf, marked if they differ. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Maximum length of a list whose members each get a row.
MAX_MEMBERS = 16
#: How many members of a longer list are shown.
_NUM_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A leaf of one document or both. A long list is one leaf, since two orders of 400 tiles would otherwise take
    hundreds of rows.
    """

    #: Dotted path, e.g. ``tiling.tiles.0.m``.
    name: str
    #: Its value in each document; None if the document does not have it.
    first: Any
    second: Any

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return bool(self.first != self.second)


def side_by_side(first: Any, second: Any) -> list[Difference]:
    """All leaves of both documents: the first one's in its order, then those that only the second one has."""
    one, other = dict(_leaves(first)), dict(_leaves(second))
    names = list(dict.fromkeys((*one, *other)))
    return [Difference(name=name, first=one.get(name), second=other.get(name)) for name in names]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        children: Any = value.items()
    elif isinstance(value, list | tuple) and len(value) > MAX_MEMBERS:
        yield path, _shortened(value)
        return
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        if value is not None:
            yield path, value
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}" if path else str(name))


def _shortened(values: Sequence[Any]) -> str:
    """`64: 0 1 2 3 4 5 6 7 ..., digest 1a2b3c4d`: lists with equal texts are equal."""
    digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
    return f"{len(values)}: {' '.join(json.dumps(one) for one in values[:_NUM_SHOWN])} ..., digest {digest}"
