"""What the program has to know of an activation."""

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
    """One elementwise function, applied in fp32. Every form of it propagates NaN."""

    #: As JSON has it: lower-case letters, digits and underscores.
    name: str
    #: In packs and in the C API, where it is TUNER_ and the name; never another's. Packages take numbers from 128 on.
    number: int
    #: Names of transformers for this very function, beside its own. Source: transformers, activations.py, ACT2CLS.
    aliases: tuple[str, ...] = ()
    #: Whether transformers means this function by `name`, too.
    is_transformers_name: bool = True
    #: The function: of an array module and an array, in the array's own precision.
    host: Callable[[ArrayModule, Array], Array]
    #: An expression of CUDA for the value at `float x`. It may call what ptx.cuh and logistic.cuh have.
    device: str
    #: Of `torch.nn.functional` and a tensor: the function as a model calls it.
    torch: Callable[[Any, Any], Any]
    #: Of the array module, arguments and their largest errors: how far the function's value may be off.
    spread: Callable[[ArrayModule, Array, Array], Array]
    #: cublasLtEpilogue_t that has it, without a bias and with one; None where the library has it in none.
    library: tuple[VendorType, VendorType] | None = None
    #: Whether it takes few registers on the device.
    is_plain: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            remedy = "use lower-case letters, digits and underscores"
            raise InvalidInput(f"activation {self.name!r}", "is not a valid name in C and CUDA", remedy)

    @property
    def is_added(self) -> bool:
        """Whether a package brings it."""
        return self.number >= FIRST_ADDED_NUMBER

    @property
    def enumerator(self) -> str:
        """Its name in device code."""
        return f"k{self.name.capitalize()}"


def within(steepest: float) -> Callable[[ArrayModule, Array, Array], Array]:
    """The spread of a function that is nowhere steeper."""
    return lambda xp, z, error: steepest * error
