"""AWQ's integers in groups with zero points. Source: AutoAWQ's `quant_config`."""

from __future__ import annotations

from tuner.core.problem.quantisation.said import FIELD, Config, Stored, has_four_bits, in_groups_of, is_among
from tuner.errors import InvalidInput

#: The name of AWQ's usual layout.
_LAYOUT = "gemm"
#: The library that writes this layout.
_BACKEND = "autoawq"


def stored_as(config: Config, module: str) -> Stored | None:
    """How a module's weights are stored; None if they are not quantised.

    Raises:
        InvalidInput: names the field that no kernel supports.
    """
    if is_among(module, config.get("modules_to_not_convert")):
        return None
    has_four_bits(f"{FIELD}.bits", config.get("bits", config.get("w_bit")))
    version = str(config.get("version") or _LAYOUT).lower()
    if version != _LAYOUT:
        raise InvalidInput(f"{FIELD}.version", f"is {version}", "use a checkpoint in AWQ's usual layout, gemm")
    if (backend := config.get("backend") or _BACKEND) != _BACKEND:
        raise InvalidInput(
            f"{FIELD}.backend", f"is {backend}", f"give a checkpoint of {_BACKEND}, whose layout is known"
        )
    if not config.get("zero_point", True):
        raise InvalidInput(f"{FIELD}.zero_point", "is false", "give a checkpoint with zero points")
    size = config.get("group_size", config.get("q_group_size"))
    return Stored(weights=in_groups_of(f"{FIELD}.group_size", size, has_zeros=True))
