"""An axis of a schedule: one record, beside the field that has its value, of all that others ask of it.

A search has its parameters and the model's features from here, JSON and its digests whether a value is there, a
schedule's one line and its sentences their words, rules the values that there are, documents their rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import EnumMeta, StrEnum
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar, get_origin, get_type_hints

Chosen = TypeVar("Chosen")
_METADATA = "axis"
#: Of a field that is no axis: what it holds has axes of its own.
NO_AXIS = MappingProxyType({_METADATA: None})
#: The version of an axis that is in JSON only where it has not its default, of those that came before versions had
#: numbers.
LATER = "0"
#: In the place of a default: there is none.
NEEDED: Any = object()


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is known of one axis."""

    #: Name of the field.
    name: str = ""
    #: Its value where nothing is said; `NEEDED` where that must not be.
    default: Any = None
    #: All values that it may have; empty where rules of their own say so.
    values: tuple[Any, ...] = ()
    #: Those that a search tries around any schedule, each alone; empty where the space says which.
    near: tuple[Any, ...] = ()
    #: Numbers by which a model compares schedules, on scales that make one step of each axis about as far as another's.
    features: Callable[[Any], Sequence[float]] | None = None
    #: The same where they hang on the other axes of what has the value, too.
    features_in: Callable[[Any, Any], Sequence[float]] | None = None
    #: Its name among a search's parameters, and so in charts; the field's where it is empty.
    param: str = ""
    #: What a schedule's one line says where it has not its default, with the value in braces; empty where the line has
    #: words of its own for it.
    word: str = ""
    #: The same as a sentence for people.
    sentence: str = ""
    #: For the documents: its values, and what it means.
    values_in_words: str = ""
    meaning: str = ""
    #: The version that it came with; empty where it was in the first one, so that JSON always has it.
    since: str = ""

    @property
    def param_name(self) -> str:
        """Among a search's parameters."""
        return self.param or self.name

    def is_plain(self, value: Any) -> bool:
        """Whether that is the default."""
        return bool(value == self.default)

    def features_of(self, value: Any) -> Sequence[float]:
        """For the model. Where an axis says nothing: half of each other choice, powers of two of a count."""
        if self.features is not None:
            return self.features(value)
        if isinstance(value, bool):
            return (0.5 * value,)
        if isinstance(value, StrEnum):
            return [0.5 * (value is one) for one in type(value) if one != self.default]
        return (math.log2(1 + value),) if isinstance(value, int) else ()


def nothing(_: Any) -> tuple[float, ...]:
    """Features of an axis that the model sees otherwise, or not at all."""
    return ()


def log2(value: int) -> tuple[float]:
    """Features of a count, of which twice as many is a step."""
    return (math.log2(value),)


def whole_step(value: Any) -> tuple[float, ...]:
    """Features of a choice that changes much: a whole step to each value but the first."""
    if isinstance(value, StrEnum):
        return tuple(float(value is one) for one in tuple(type(value))[1:])
    return (float(value),)


def axis(default: Any = MISSING, *, repr: bool = True, **known: Any) -> Any:
    """A field of a dataclass, with what is known of it as an axis."""
    return field(default=default, repr=repr, metadata={_METADATA: Axis(**known)})


class FeaturesOf:
    """For the model, the features of these axes of a dataclass, or of all; of lists of values there are none.

    A search asks it of thousands of schedules, so what it says of a value is kept.
    """

    def __init__(self, kind: Any, names: Sequence[str] | None = None) -> None:
        axes, hints = axes_of(kind), get_type_hints(kind)
        chosen = [axes[name] for name in (axes if names is None else names) if get_origin(hints[name]) is not tuple]
        self._values = attrgetter(*(one.name for one in chosen), *[chosen[0].name] * (len(chosen) == 1))
        self._axes = [
            (one, {}, FeaturesOf(hint) if is_dataclass(hint) else None, isinstance(hint, EnumMeta))
            for one in chosen
            for hint in (hints[one.name],)
        ]  # type: list[tuple[Axis, dict[Any, Sequence[float]], FeaturesOf | None, bool]]

    def __call__(self, chosen: Any) -> list[float]:
        """What one call makes."""
        found = list[float]()
        for value, (one, known, inner, is_name) in zip(self._values(chosen), self._axes, strict=False):
            if inner is not None:
                found += inner(value)
            elif one.features_in is not None:
                found += one.features_in(value, chosen)
            else:
                key = id(value) if is_name else value  # a name's hash takes a call of Python's
                if key not in known:
                    known[key] = one.features_of(value)
                found += known[key]
        return found


def axes_of(kind: Any) -> Mapping[str, Axis]:
    """Axes of a dataclass, by the names of its fields, in their order. A field that says nothing is an axis as well."""
    return _axes_of(kind)


@cache
def _axes_of(kind: Any) -> Mapping[str, Axis]:
    found = {}
    for one in fields(kind):
        known: Axis | None = one.metadata.get(_METADATA, Axis())
        if known is None:
            continue
        values = {name: getattr(known, name) for name in known.__dataclass_fields__}
        default = NEEDED if one.default is MISSING else one.default
        found[one.name] = Axis(**values | {"name": one.name, "default": default})
    return found


def words_of(chosen: Any, names: Sequence[str] | None = None) -> str:
    """What a schedule's one line says of these axes of it, or of all: each word behind a blank."""
    axes = axes_of(type(chosen))
    shown = ((axes[name], getattr(chosen, name)) for name in names or axes)
    return "".join(f" {one.word.format(value)}" for one, value in shown if one.word and not one.is_plain(value))


def sentences_of(chosen: Any) -> list[str]:
    """What is told to people of axes that have not their defaults."""
    shown = ((one, getattr(chosen, name)) for name, one in axes_of(type(chosen)).items())
    return [one.sentence.format(value) for one, value in shown if one.sentence and not one.is_plain(value)]


def values_problem(chosen: Any) -> str | None:
    """Why an axis has a value that it may not have, by the record alone."""
    kind: Any = type(chosen)
    for name, values in _values_of(kind):
        if (value := getattr(chosen, name)) not in values:
            return f"{name} {value}: use one of {', '.join(map(str, values))}"
    return None


@cache
def _values_of(kind: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return tuple((name, one.values) for name, one in axes_of(kind).items() if one.values)


def near(chosen: Chosen) -> Iterator[Chosen]:
    """The same with each value that an axis says is tried around any schedule, one axis at a time."""
    whole: Any = chosen
    for name, one in axes_of(type(chosen)).items():
        yield from (replace(whole, **{name: value}) for value in one.near if value != getattr(chosen, name))
