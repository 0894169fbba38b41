"""GPTQ's integers in groups. Source: AutoGPTQ's and GPTQModel's `quantize_config`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tuner.core.problem.quantisation.said import FIELD, Config, Stored, has_four_bits, in_groups_of, is_among, no_order
from tuner.errors import InvalidInput

#: The known layouts of 4-bit tensors; others belong to one library's kernels.
_FORMATS = ("gptq", "gptq_v2")
_USUAL = f"give a checkpoint of {' or '.join(_FORMATS)}"
#: The type of a word of codes.
_WORD = "int32"


def stored_as(config: Config, module: str) -> Stored | None:
    """How a module's weights are stored; None if they are not quantised.

    Raises:
        InvalidInput: names the field that no kernel supports.
    """
    if (inside := config.get("modules_in_block_to_quantize")) and not is_among(module, _flat(inside)):
        return None
    if (overridden := _overridden(config, module)) is None:
        return None
    own, at = overridden
    kind = own.get("checkpoint_format", own.get("format")) or "gptq"
    if kind not in _FORMATS:
        problem = f"is {kind}, a layout of one library's kernels"
        raise InvalidInput(at("checkpoint_format"), problem, _USUAL)
    if own.get("is_marlin_format"):
        raise InvalidInput(at("is_marlin_format"), "is true, a layout of one library's kernels", _USUAL)
    if (packed := own.get("pack_dtype") or _WORD) != _WORD:
        raise InvalidInput(at("pack_dtype"), f"is {packed}", f"give a checkpoint with codes in {_WORD}")
    has_four_bits(at("bits"), own.get("bits"))
    if own.get("desc_act"):
        raise no_order(at("desc_act"), own["desc_act"])
    has_zeros = not own.get("sym", True)
    return Stored(weights=in_groups_of(at("group_size"), own.get("group_size"), has_zeros=has_zeros))


def _overridden(config: Config, module: str) -> tuple[dict[str, Any], Callable[[str], str]] | None:
    """The fields that apply to a module, and the place of each. `dynamic` maps patterns to other fields, or excludes
    modules with a minus; the first pattern that matches applies. None if the module is excluded."""
    own, pattern = dict(config), ""
    fields: Mapping[str, Any] = {}
    rules = own.pop("dynamic", None) or {}
    if matching := [one for one in rules if re.match(one.removeprefix("-:").removeprefix("+:"), module)]:
        pattern = matching[0]
        if pattern.startswith("-:"):
            return None
        fields = rules[pattern] if isinstance(rules[pattern], Mapping) else {}
    return own | dict(fields), lambda name: f"{FIELD}.dynamic.{pattern}.{name}" if name in fields else f"{FIELD}.{name}"


def _flat(names: Any) -> list[Any]:
    """The names, whether given as names or as lists of names."""
    return [one for some in names for one in (some if isinstance(some, list) else [some])]
