"""What others call the activations that are ours. Whoever compares a name with ours makes it canonical here first."""

from __future__ import annotations

from tuner.core.problem.gemm_op import Activation
from tuner.errors import InvalidInput

#: Names of transformers whose function is one of ours. Its ``gelu`` is not among them: that is the exact form, by erf,
#: and ours is the tanh form. Source: transformers, activations.py, ACT2CLS.
OF_TRANSFORMERS = {
    "gelu_accurate": Activation.GELU,
    "gelu_fast": Activation.GELU,
    "gelu_new": Activation.GELU,
    "gelu_python_tanh": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
    "linear": Activation.IDENTITY,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
#: Every name that a kernel's activation may be given by: ours, and those of the same function.
_NAMES = {**OF_TRANSFORMERS, **{str(one): one for one in Activation}}


def canonical(name: str, *, field: str = "activation") -> Activation:
    """Ours of that function, by our name or by another one; ``gelu`` is ours, the tanh form.

    Raises:
        InvalidInput: no activation of ours has that name.
    """
    if isinstance(name, str) and name in _NAMES:
        return _NAMES[name]
    raise InvalidInput(field, f"is {name!r}, which no kernel here has", f"give one of {', '.join(sorted(_NAMES))}")


def of_transformers(name: object, *, field: str = "hidden_act") -> Activation:
    """Ours of the function that a config of transformers names so.

    Raises:
        InvalidInput: ours has no such function; of ``gelu`` it says why.
    """
    if isinstance(name, str) and name in OF_TRANSFORMERS:
        return OF_TRANSFORMERS[name]
    exact = "; our gelu is the tanh form, and this one is exact" if name == "gelu" else ""
    known = ", ".join(sorted(OF_TRANSFORMERS))
    raise InvalidInput(field, f"is {name!r}, which no kernel here has{exact}", f"give a model of one of {known}")


def names_of(activation: Activation) -> tuple[str, ...]:
    """All names that `canonical` takes for it."""
    return tuple(name for name, one in _NAMES.items() if one is activation)
