"""How a product is quantised, and messages about formats without a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput

#: The key of a model's config that describes its quantisation.
FIELD = "quantization_config"
#: All fields that are read in this part of the config, and one with a similar name.
NAMES = frozenset(
    {
        *("quant_method", "quant_algo", "quantization", "format", "checkpoint_format", "fmt", "version", "type"),
        *("bits", "w_bit", "num_bits", "group_size", "q_group_size", "weight_block_size", "block_structure"),
        *("desc_act", "actorder", "sym", "symmetric", "zero_point", "dynamic", "strategy", "activation_scheme"),
        *("config_groups", "targets", "weights", "input_activations", "output_activations", "sparsity_config"),
        *("ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert", "modules_in_block_to_quantize"),
        *("is_marlin_format", "pack_dtype", "backend", "transform_config"),
    }
)
Config = Mapping[str, Any]
#: Rows and columns of a block of fp8 weights with one scale.
BLOCK = WeightFormat.E4M3_G128.row.group


class Activations(StrEnum):
    """The type and scaling of a product's input."""

    #: Elements of 16 bits.
    SIXTEEN = "16-bit activations"
    #: fp8 with a scale from the checkpoint.
    TENSOR = "fp8 activations by tensor"
    #: fp8 with a scale per row, computed during quantisation.
    TOKEN = "fp8 activations by token"
    #: fp8 with a scale per row and 128 elements, computed during quantisation.
    BLOCK = "fp8 activations in groups of 128"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How a product is quantised."""

    weights: WeightFormat
    activations: Activations = Activations.SIXTEEN

    def __str__(self) -> str:
        return f"{self.weights} weights, {self.activations}"


def in_groups_of(field: str, size: Any, *, has_zeros: bool, element_bits: int = 16) -> WeightFormat:
    """The format of 4-bit weights in groups of `size`, for inputs with elements of so many bits.

    Raises:
        InvalidInput: there is no such format.
    """
    sizes = {one.row.group: one for one in WeightFormat if one.row.form == (4, True, has_zeros, False, element_bits)}
    if size not in sizes or isinstance(size, bool):
        raise InvalidInput(field, f"is {size!r}", f"use one of {', '.join(map(str, sizes))}, which kernels support")
    return sizes[size]


def has_four_bits(field: str, bits: Any) -> None:
    """Checks that `bits` is 4.

    Raises:
        InvalidInput: it is a different number, or missing.
    """
    if bits != 4 or isinstance(bits, bool):
        raise InvalidInput(
            field, f"is {bits!r}", "give a checkpoint with 4-bit integers, the only ones that kernels support"
        )


def in_blocks_of(field: str, block: Any) -> WeightFormat:
    """The format of fp8 weights with a scale per block of rows and columns.

    Raises:
        InvalidInput: there is no such format.
    """
    if block not in ([BLOCK, BLOCK], (BLOCK, BLOCK), f"{BLOCK}x{BLOCK}"):
        raise InvalidInput(field, f"is {block}", f"use [{BLOCK}, {BLOCK}], the blocks that kernels support")
    return WeightFormat.E4M3_G128


def no_order(field: str, value: Any) -> InvalidInput:
    """The error for activation order (act order), in which groups do not follow the order of k."""
    problem = (
        f"is {str(value).lower()}: its groups are in activation order (act order), but kernels read k in storage order"
    )
    return InvalidInput(field, problem, "quantise without act order (desc_act false, actorder null or static)")


def in_e2m1(field: str) -> WeightFormat:
    """The format of e2m1 codes with a power of two (e8m0) per 32 weights.

    Raises:
        InvalidInput: no kernel supports it.
    """
    found = next((one for one in WeightFormat if one.row.bits == 4 and one.row.has_powers), None)
    if found is None:
        problem = "is mxfp4: no kernel supports e2m1 codes"
        raise InvalidInput(field, problem, "quantise to int4 in groups, or convert the weights to bf16")
    return found


def is_among(name: str, patterns: Iterable[Any] | None) -> bool:
    """Whether a module matches a pattern: its name or the end of its name, the name of a module that contains it, its
    name within the language model of a larger model, a glob, or a regular expression after ``re:``, which is matched
    from the start of the name."""
    return any(_is_it(name, pattern) for pattern in patterns or () if isinstance(pattern, str))


def _is_it(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return f".{pattern}." in f".{name}." or pattern.endswith(f".{name}")
