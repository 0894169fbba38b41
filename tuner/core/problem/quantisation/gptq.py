"""GPTQ's integers in groups. Source: AutoGPTQ's and GPTQModel's `quantize_config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.core.problem.quantisation.said import FIELD, Config, Stored, has_four_bits, in_groups_of, is_among, no_order
from tuner.errors import InvalidInput

#: How tensors of 4 bits lie; others are of one library's kernels.
_FORMATS = ("gptq", "gptq_v2")


def stored_as(config: Config, module: str) -> Stored | None:
    """Of a module; None where its weights are not quantised.

    Raises:
        InvalidInput: names the field that has no kernel.
    """
    if (inside := config.get("modules_in_block_to_quantize")) and not is_among(module, _flat(inside)):
        return None
    if (own := _overridden(config, module)) is None:
        return None
    kind = own.get("checkpoint_format", own.get("format")) or "gptq"
    if kind not in _FORMATS:
        problem = f"is {kind}, a layout of one library's kernels"
        raise InvalidInput(f"{FIELD}.checkpoint_format", problem, f"give a checkpoint of {' or '.join(_FORMATS)}")
    has_four_bits(f"{FIELD}.bits", own.get("bits"))
    if own.get("desc_act"):
        raise no_order(f"{FIELD}.desc_act", own["desc_act"])
    has_zeros = not own.get("sym", True)
    return Stored(weights=in_groups_of(f"{FIELD}.group_size", own.get("group_size"), has_zeros=has_zeros))


def _overridden(config: Config, module: str) -> dict[str, Any] | None:
    """What holds of a module: `dynamic` has patterns with fields of their own, or a minus for what is left out. The
    first that fits counts."""
    own = dict(config)
    rules = own.pop("dynamic", None)
    for pattern, fields in (rules or {}).items():
        if re.match(pattern.removeprefix("-:").removeprefix("+:"), module):
            return None if pattern.startswith("-:") else own | (dict(fields) if isinstance(fields, Mapping) else {})
    return own


def _flat(names: Any) -> list[Any]:
    """Lists of names, or names."""
    return [one for some in names for one in (some if isinstance(some, list) else [some])]
