"""Names that a JSON object has twice. Programs that read it take the first value, the last one, or neither."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tuner.core.json_names import repeated


class _Repeating(dict[str, Any]):
    """An object with a repeated name; it has the last value of each name."""

    #: The first repeated name.
    name: str


#: Length of the end of a path that is returned.
_KEPT = 200

#: A path that shares its begin with others, since one with a long name may have many elements: the path to an object or
#: a list, and a name or an index in it.
_Steps: TypeAlias = "tuple[()] | tuple[_Steps, str | int]"


def repeated_field(body: bytes) -> str | None:
    """The dotted path, e.g. ``pair.m``, of a name that an object has twice, of a long one only the end; None if there
    is none, or if the body is not JSON.
    """
    found = list[_Repeating]()

    def read(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if (name := repeated(pairs)) is None:
            return dict(pairs)
        found.append(one := _Repeating(pairs))
        one.name = name
        return one

    try:
        document = json.loads(body, object_pairs_hook=read)
    except (ValueError, RecursionError):
        return None
    return next(_paths(document), None) if found else None


def _paths(document: Any) -> Iterator[str]:
    """Of all objects with a repeated name that are left in the document, the outer ones first."""
    waiting: list[tuple[_Steps, Any]] = [((), document)]
    for steps, value in waiting:
        if isinstance(value, _Repeating):
            yield _dotted((steps, value.name))
        named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [((steps, name), one) for name, one in named]


def _dotted(steps: _Steps) -> str:
    names = list[str]()
    while steps:
        steps, name = steps
        names.append(str(name))
    dotted = ".".join(reversed(names))
    return dotted if len(dotted) <= _KEPT else f"...{dotted[-_KEPT:]}"
