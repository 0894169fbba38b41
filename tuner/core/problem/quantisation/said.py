"""How a product is quantised, and words for what has no kernel."""

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
Config = Mapping[str, Any]


class Activations(StrEnum):
    """The dtype and scaling with which a product's input is multiplied."""

    #: Elements of 16 bits.
    SIXTEEN = "16-bit activations"
    #: fp8, with a factor that the checkpoint brings.
    TENSOR = "fp8 activations by tensor"
    #: fp8, with a factor of each row, found as it is quantised.
    TOKEN = "fp8 activations by token"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How a product is quantised."""

    weights: WeightFormat
    activations: Activations = Activations.SIXTEEN

    def __str__(self) -> str:
        return f"{self.weights} weights, {self.activations}"


def in_groups_of(field: str, size: Any, *, has_zeros: bool) -> WeightFormat:
    """The format of 4 bits in such groups.

    Raises:
        InvalidInput: there is none.
    """
    sizes = {one.row.group: one for one in WeightFormat if one.row.form == (4, has_zeros, False)}
    if size not in sizes or isinstance(size, bool):
        raise InvalidInput(field, f"is {size!r}", f"give one of {', '.join(map(str, sizes))}, which kernels have")
    return sizes[size]


def has_four_bits(field: str, bits: Any) -> None:
    """Checks that.

    Raises:
        InvalidInput: it is another number, or none.
    """
    if bits != 4 or isinstance(bits, bool):
        raise InvalidInput(field, f"is {bits!r}", "give a checkpoint of 4 bits, the only integers that kernels have")


def no_blocks(field: str, block: Any) -> InvalidInput:
    """The error for factors of blocks of weights."""
    problem = f"is {block}: no kernel here has factors of blocks (scheme block)"
    return InvalidInput(field, problem, "quantise by channel or by tensor, or convert the weights to bf16")


def no_order(field: str, value: Any) -> InvalidInput:
    """The error for act order, in which the groups are not in the order of k."""
    problem = f"is {str(value).lower()}: groups lie in an order of their own (act order), and kernels read k as it lies"
    return InvalidInput(field, problem, "quantise without act order (desc_act false, actorder null or static)")


def in_e2m1(field: str) -> WeightFormat:
    """The format of e2m1 codes with a power of two (e8m0) for 32 weights.

    Raises:
        InvalidInput: no kernel has it.
    """
    found = next((one for one in WeightFormat if one.row.bits == 4 and one.row.has_powers), None)
    if found is None:
        problem = "is mxfp4: no kernel here has codes of e2m1"
        raise InvalidInput(field, problem, "quantise to int4 in groups, or convert the weights to bf16")
    return found


def is_among(name: str, patterns: Iterable[Any] | None) -> bool:
    """Whether a module matches a pattern: its name or the end of it, the name of a module that contains it, a glob, or
    a regular expression after ``re:``, which is matched from the start of the name."""
    return any(_is_it(name, pattern) for pattern in patterns or () if isinstance(pattern, str))


def _is_it(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return f".{pattern}." in f".{name}."
