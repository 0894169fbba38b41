"""Two nested documents side by side: one row per leaf, marked if they differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A leaf of one or both."""

    #: Dotted path, e.g. ``tiling.tiles.0.m``.
    name: str
    #: None if it is missing there.
    first: Any
    second: Any

    @property
    def differs(self) -> bool:
        """Whether the two are not equal."""
        return bool(self.first != self.second)


def side_by_side(first: Any, second: Any) -> list[Difference]:
    """All leaves of both, in the order of the first, then those of only the second."""
    one, other = dict(_leaves(first)), dict(_leaves(second))
    names = list(dict.fromkeys((*one, *other)))
    return [Difference(name=name, first=one.get(name), second=other.get(name)) for name in names]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        children: Any = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        if value is not None:
            yield path, value
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}" if path else str(name))
