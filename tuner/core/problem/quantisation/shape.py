"""The JSON types of a config's fields, checked before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tuner.core.problem.quantisation.said import FIELD, Config
from tuner.errors import InvalidInput

#: Fields with lists of modules, and fields with objects.
_LISTS = frozenset(
    {
        *("ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert", "modules_in_block_to_quantize"),
        "targets",
    }
)
_OBJECTS = frozenset(
    {*("weights", "input_activations", "output_activations", "sparsity_config", "transform_config", "kv_cache_scheme")}
)
#: Fields that are true or false.
_FLAGS = frozenset({"desc_act", "sym", "symmetric", "zero_point", "is_marlin_format"})
#: What `dynamic` of weights or activations may be besides true and false.
_LOCAL = "local"
_AS_WRITTEN = "give the config as the quantiser wrote it"


def check_types(config: Config, field: str = FIELD) -> None:
    """Checks the known fields of a config, and of the objects in it.

    Raises:
        InvalidInput: a field has a different type, or a pattern is not a regular expression.
    """
    for name, value in config.items():
        here = f"{field}.{name}"
        if value is None:
            continue
        if name in _LISTS:
            if not isinstance(value, list | tuple):
                raise InvalidInput(here, f"is {value!r}, not a list of modules", _AS_WRITTEN)
            _check_names(here, value, has_lists=name == "modules_in_block_to_quantize")
            _check_patterns(here, (one[3:] for one in value if isinstance(one, str) and one.startswith("re:")))
        elif name in _OBJECTS and not isinstance(value, Mapping):
            raise InvalidInput(here, f"is {value!r}, not an object", _AS_WRITTEN)
        elif (name in _FLAGS or (name == "dynamic" and field != FIELD and value != _LOCAL)) and not isinstance(
            value, bool
        ):
            raise InvalidInput(here, f"is {value!r}, neither true nor false", _AS_WRITTEN)
        elif name == "dynamic" and field == FIELD and value:
            if not isinstance(value, Mapping):
                raise InvalidInput(here, f"is {value!r}, not an object of patterns", _AS_WRITTEN)
            _check_patterns(here, (one.removeprefix("-:").removeprefix("+:") for one in value))
        if isinstance(value, Mapping):
            check_types({str(key): one for key, one in value.items()}, here)


def _check_names(field: str, names: Iterable[Any], *, has_lists: bool) -> None:
    for name in names:
        if has_lists and isinstance(name, list):
            _check_names(field, name, has_lists=False)
        elif not isinstance(name, str):
            raise InvalidInput(field, f"has {name!r}, which is no name of a module", _AS_WRITTEN)


def _check_patterns(field: str, patterns: Iterable[Any]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            problem = f"has {pattern!r}, which is no regular expression: {error}"
            raise InvalidInput(field, problem, "correct the pattern") from error
