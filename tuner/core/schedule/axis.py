"""An axis of a schedule: one record of everything that other code needs to know about it, next to the field with its
value.

Search parameters, the model's features, JSON and its digests, the printed line and its sentences, rules and documents
are all derived from the record.
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
#: Marks a field that is not an axis: its value has its own axes.
NO_AXIS = MappingProxyType({_METADATA: None})
#: The version of axes that predate version numbers but are in JSON only if they differ from their default.
LATER = "0"
#: Stands for a missing default.
NEEDED: Any = object()


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Properties of one axis."""

    #: Name of the field.
    name: str = ""
    #: Its value if none is given; `NEEDED` if it is required.
    default: Any = None
    #: All allowed values; empty if other rules define them.
    values: tuple[Any, ...] = ()
    #: Values that a search tries around any schedule, each separately; empty if the space defines them.
    near: tuple[Any, ...] = ()
    #: Numbers by which a model compares schedules, scaled so that one step of each axis is about equally far.
    features: Callable[[Any], Sequence[float]] | None = None
    #: The same features, if they also depend on other axes of the object with the value.
    features_in: Callable[[Any, Any], Sequence[float]] | None = None
    #: Its name as a search parameter, and therefore in charts; empty for the field's name.
    param: str = ""
    #: Its word in a schedule's printed line if it differs from its default, with the value in braces; empty if the line
    #: has its own words for it.
    word: str = ""
    #: A sentence about the value, with the value in braces.
    sentence: str = ""
    #: Its values, and its meaning, in words for the docs.
    values_in_words: str = ""
    meaning: str = ""
    #: The version that added it; empty for the first one, so that JSON always has it.
    since: str = ""

    @property
    def param_name(self) -> str:
        """Its name as a search parameter."""
        return self.param or self.name

    def is_plain(self, value: Any) -> bool:
        """Whether the value is the default."""
        return bool(value == self.default)

    def features_of(self, value: Any) -> Sequence[float]:
        """Features for the model. By default, each other choice is half a step away, and counts are in powers of
        two."""
        if self.features is not None:
            return self.features(value)
        if isinstance(value, bool):
            return (0.5 * value,)
        if isinstance(value, StrEnum):
            return [0.5 * (value is one) for one in type(value) if one != self.default]
        return (math.log2(1 + value),) if isinstance(value, int) else ()


def nothing(_: Any) -> tuple[float, ...]:
    """Features of an axis that the model represents differently, or not at all."""
    return ()


def log2(value: int) -> tuple[float]:
    """Features of a count, for which doubling is one step."""
    return (math.log2(value),)


def whole_step(value: Any) -> tuple[float, ...]:
    """Features of a choice with a large effect: each value but the first is a whole step away."""
    if isinstance(value, StrEnum):
        return tuple(float(value is one) for one in tuple(type(value))[1:])
    return (float(value),)


def axis(default: Any = MISSING, *, repr: bool = True, **known: Any) -> Any:
    """A dataclass field with the properties of an axis."""
    return field(default=default, repr=repr, metadata={_METADATA: Axis(**known)})


class FeaturesOf:
    """The model's features for some axes of a dataclass, or for all; lists of values have none.

    A search calls it for thousands of schedules, so features are cached per value.
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
        """The features of one object."""
        found = list[float]()
        for value, (one, known, inner, is_name) in zip(self._values(chosen), self._axes, strict=False):
            if inner is not None:
                found += inner(value)
            elif one.features_in is not None:
                found += one.features_in(value, chosen)
            else:
                key = id(value) if is_name else value  # hashing a name would take a Python call
                if key not in known:
                    known[key] = one.features_of(value)
                found += known[key]
        return found


def axes_of(kind: Any) -> Mapping[str, Axis]:
    """The axes of a dataclass, by field name, in the order of the fields. A field without a record is an axis as
    well."""
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
    """The words of the axes `names`, or of all, in a schedule's printed line, each preceded by a space."""
    axes = axes_of(type(chosen))
    shown = ((axes[name], getattr(chosen, name)) for name in names or axes)
    return "".join(f" {one.word.format(value)}" for one, value in shown if one.word and not one.is_plain(value))


def sentences_of(chosen: Any) -> list[str]:
    """Sentences about axes that differ from their defaults."""
    shown = ((one, getattr(chosen, name)) for name, one in axes_of(type(chosen)).items())
    return [one.sentence.format(value) for one, value in shown if one.sentence and not one.is_plain(value)]


def values_problem(chosen: Any) -> str | None:
    """Why an axis has an invalid value, according to its record alone."""
    kind: Any = type(chosen)
    for name, values in _values_of(kind):
        if (value := getattr(chosen, name)) not in values:
            return f"{name} {value}: use one of {', '.join(map(str, values))}"
    return None


@cache
def _values_of(kind: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return tuple((name, one.values) for name, one in axes_of(kind).items() if one.values)


def near(chosen: Chosen) -> Iterator[Chosen]:
    """Copies of `chosen`, each with one axis changed to a value that the axis lists to be tried around any schedule."""
    whole: Any = chosen
    for name, one in axes_of(type(chosen)).items():
        yield from (replace(whole, **{name: value}) for value in one.near if value != getattr(chosen, name))
