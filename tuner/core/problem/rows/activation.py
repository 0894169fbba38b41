"""The properties of an activation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.rows.added import FIRST_ADDED_NUMBER
from tuner.core.problem.rows.dtype import Array, ArrayModule, VendorType
from tuner.errors import InvalidInput

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class ActivationRow:
    """One elementwise function, applied in fp32. All of its forms propagate NaN."""

    #: Its name in JSON: lower-case letters, digits and underscores.
    name: str
    #: Its number in packs and in the C API, where it is called TUNER_ and the name; never reused. Packages take numbers
    #: from 128 on.
    number: int
    #: Other transformers names of exactly this function. Source: transformers, activations.py, ACT2CLS.
    aliases: tuple[str, ...] = ()
    #: Whether `name` also means this function in transformers.
    is_transformers_name: bool = True
    #: The function, given an array module and an array; it computes in the array's own precision.
    host: Callable[[ArrayModule, Array], Array]
    #: A CUDA expression for the value at `float x`. It may call functions from ptx.cuh and logistic.cuh.
    device: str
    #: The function as models call it, given `torch.nn.functional` and a tensor.
    torch: Callable[[Any, Any], Any]
    #: Maximum error of the function's value, given the array module, arguments and their maximum errors.
    spread: Callable[[ArrayModule, Array, Array], Array]
    #: Its cublasLtEpilogue_t, without and with a bias; None if the library lacks it.
    library: tuple[VendorType, VendorType] | None = None
    #: Whether it needs few registers on the device.
    is_plain: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            remedy = "use lower-case letters, digits and underscores"
            raise InvalidInput(f"activation {self.name!r}", "is not a valid name in C and CUDA", remedy)

    @property
    def is_added(self) -> bool:
        """Whether it comes from a package."""
        return self.number >= FIRST_ADDED_NUMBER

    @property
    def enumerator(self) -> str:
        """Its name in device code."""
        return f"k{self.name.capitalize()}"


def within(steepest: float) -> Callable[[ArrayModule, Array, Array], Array]:
    """The error bound of a function with at most this slope."""
    return lambda xp, z, error: steepest * error
