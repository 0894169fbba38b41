"""A worker that sends false results: one value of an honest result is changed to an impossible one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

#: Values that no figure in a worker's result may have.
NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), float("-inf"), -5, 1e308, -1e308, 1e-300, 10**400, 2**63)
#: Texts that no name of a file, a stage or a figure may have.
NAMES = ("../../x", "/abs", "a\x00b", "x" * 10_000, "", "..", "a/b", "a\\b")

#: Fields of an honest result that are not measurements: copies of the request, or plain JSON of ours.
_COPIED = ("candidate", "manifest", "files", "procedure", "library", "source", "built")


def _places(value: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each number of a result."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _COPIED:
                yield from _places(inner, (*inside, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*inside, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield inside


def lies(answer: bytes, chance: random.Random, number: Any = None) -> bytes:
    """The result with one number changed, or falsified otherwise if it has no number; an error stays unchanged."""
    said = json.loads(answer)
    if said.get("error") or said.get("value") is None:
        return answer
    value = said["value"]
    if "files" in value:
        name = chance.choice(NAMES)
        value["files"][name] = value["files"]["manifest.json"]
    elif places := list(_places(value)):
        _set(value, chance.choice(places), chance.choice(NUMBERS) if number is None else number)
    elif "stage_s" in value:
        value["stage_s"][chance.choice(NAMES)] = 1.0
    return json.dumps(said).encode()


def _set(value: Any, place: tuple[Any, ...], number: Any) -> None:
    for step in place[:-1]:
        value = value[step]
    value[place[-1]] = number
