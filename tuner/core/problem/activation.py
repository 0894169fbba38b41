"""Activations: one row each, plus rows that packages add."""

from __future__ import annotations

from enum import StrEnum

from tuner.core.problem.rows.activation import ActivationRow, within
from tuner.core.problem.rows.added import added_rows, check_broken
from tuner.core.problem.rows.dtype import Array, ArrayModule, VendorType
from tuner.errors import InvalidInput

#: Entry-point group in which packages declare their activations.
GROUP = "tuner.activations"

#: The error bound of functions that are no steeper than any built-in activation (gelu 1.13, silu 1.10).
_GENTLE = within(1.2)


def _gelu(xp: ArrayModule, z: Array) -> Array:
    """Source: Hendrycks, Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415 (the tanh approximation)."""
    return 0.5 * z * (1 + xp.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))


class Activation(StrEnum):
    """Elementwise function applied to an op's output, in fp32, before it is rounded.

    ``gelu`` is the tanh approximation, which is also what vendor libraries fuse.
    """

    row: ActivationRow

    def __new__(cls, row: ActivationRow | str) -> Activation:
        """The member for a row; if given a name, looks up the existing member."""
        assert isinstance(row, ActivationRow), row
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    IDENTITY = ActivationRow(
        name="identity",
        number=0,
        aliases=("linear",),
        is_transformers_name=False,
        host=lambda xp, z: z,
        device="x",
        torch=lambda functional, z: z,
        spread=_GENTLE,
        library=(
            VendorType(name="CUBLASLT_EPILOGUE_DEFAULT", number=1),
            VendorType(name="CUBLASLT_EPILOGUE_BIAS", number=4),
        ),
        is_plain=True,
    )
    RELU = ActivationRow(
        name="relu",
        number=1,
        host=lambda xp, z: xp.maximum(z, 0),
        device="max_or_nan(x, 0.0f)",
        torch=lambda functional, z: functional.relu(z),
        spread=_GENTLE,
        library=(
            VendorType(name="CUBLASLT_EPILOGUE_RELU", number=2),
            VendorType(name="CUBLASLT_EPILOGUE_RELU_BIAS", number=6),
        ),
        is_plain=True,
    )
    GELU = ActivationRow(
        name="gelu",
        number=2,
        aliases=("gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh", "gelu_pytorch_tanh"),
        is_transformers_name=False,  # that is the exact form, with erf
        host=_gelu,
        # (1 + tanh z) / 2 is the logistic function of 2 z; sqrt(2 / pi) and the cubic's coefficient.
        device="times_logistic(x, 2.0f * 0.7978845608028654f * (x + 0.044715f * x * x * x))",
        torch=lambda functional, z: functional.gelu(z, approximate="tanh"),
        spread=_GENTLE,
        library=(
            VendorType(name="CUBLASLT_EPILOGUE_GELU", number=32),
            VendorType(name="CUBLASLT_EPILOGUE_GELU_BIAS", number=36),
        ),
    )
    SILU = ActivationRow(
        name="silu",
        number=3,
        aliases=("swish",),
        host=lambda xp, z: z / (1 + xp.exp(-z)),
        device="times_logistic(x, x)",
        torch=lambda functional, z: functional.silu(z),
        spread=_GENTLE,
    )
    locals().update({row.name.upper(): row for row in added_rows(GROUP, ActivationRow, (IDENTITY, RELU, GELU, SILU))})

    @classmethod
    def _missing_(cls, value: object) -> None:
        check_broken(GROUP, value)


#: The names that transformers uses for built-in functions.
OF_TRANSFORMERS = {
    name: one
    for one in Activation
    for name in (*one.row.aliases, *((str(one),) if one.row.is_transformers_name else ()))
}
#: All accepted names of an activation: the built-in names, and other names of the same functions.
_NAMES = {**OF_TRANSFORMERS, **{str(one): one for one in Activation}}


def canonical(name: str, *, field: str = "activation") -> Activation:
    """The built-in activation for one of its names; ``gelu`` is the tanh form.

    Raises:
        InvalidInput: there is no activation with that name.
    """
    if isinstance(name, str) and name in _NAMES:
        return _NAMES[name]
    raise InvalidInput(field, f"is {name!r}, which no kernel supports", f"use one of {', '.join(sorted(_NAMES))}")


def of_transformers(name: object, *, field: str = "hidden_act") -> Activation:
    """The built-in activation for a name in a transformers config.

    Raises:
        InvalidInput: there is none; for ``gelu`` the message has the reason.
    """
    if isinstance(name, str) and name in OF_TRANSFORMERS:
        return OF_TRANSFORMERS[name]
    exact = "; tuner's gelu is the tanh form, and this one is exact" if name == Activation.GELU else ""
    known = ", ".join(sorted(OF_TRANSFORMERS))
    raise InvalidInput(field, f"is {name!r}, which no kernel supports{exact}", f"use a model with one of {known}")


def names_of(activation: Activation) -> tuple[str, ...]:
    """All names that `canonical` accepts for the activation."""
    return tuple(name for name, one in _NAMES.items() if one is activation)
