"""MLPs of a model of transformers by `torch.ops.tuner.ffn`: modules keep their names, parameters and states. The
weights of gate and up become the halves of one tensor, so nothing is stored twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from tuner.core.problem.activation import canonical
from tuner.core.problem.dtype import UNSCALED
from tuner.errors import InvalidInput
from tuner.runtime import torch_op
from tuner.runtime.binding.native import RuntimeFailure
from tuner.runtime.programs.pack import Pack
from tuner.runtime.pytorch.operands import name_of
from tuner.runtime.tensors.weights import Weights

#: The MLPs of transformers that compute exactly down(activation(gate) * up), by their classes.
FAMILIES = frozenset(
    {"Gemma2MLP", "Gemma3MLP", "GemmaMLP", "LlamaMLP", "MistralMLP", "Phi3MLP", "Qwen2MLP", "Qwen3MLP"}
)
#: The transformers modules that apply an activation that we support.
_ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUTanh": "gelu", "PytorchGELUTanh": "gelu"}
_DTYPES = {dtype.row.array_name for dtype in UNSCALED}


class PackedMlp(torch.nn.Module):  # type: ignore[misc]
    """The same modules under the same names, computed by the operator."""

    def __init__(self, mlp: Any, w1: torch.Tensor, activation: str, number: int) -> None:
        super().__init__()
        for name, module in mlp.named_children():
            self.add_module(name, module)
        self.activation, self.number = activation, number
        # Neither a parameter nor a buffer: its halves are already in the state dict.
        self._w1 = [w1]

    @property
    def merged(self) -> torch.Tensor:
        """The rows of gate above those of up."""
        return self._w1[0]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Called by `to` and similar methods: moved weights are merged again, and the kernels of the old ones are
        released."""
        before = self.down_proj.weight.data_ptr()
        super()._apply(fn, recurse)
        if self.down_proj.weight.data_ptr() != before:
            self._w1, self.number = [_merged(self)], 0
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [..., hidden] to the same shape."""
        rows, w2 = x.reshape(-1, x.shape[-1]), self.down_proj.weight
        y = torch.ops.tuner.ffn(rows, self.merged, w2, None, None, None, None, self.activation, True, self.number)
        return y.view(*x.shape[:-1], y.shape[-1])


def replace(model: Any, opened: Callable[[], Pack], *, merges_all: bool) -> tuple[int, Counter[str]]:
    """Replaces what can be replaced, layer by layer; `opened` returns the pack if a weight is on a card. Returns the
    number of MLPs, and why kernels do not compute some. With `merges_all`, MLPs without kernels are replaced, too:
    PyTorch's products compute them, over the merged weights."""
    mlps = [(name, one) for name, one in model.named_modules() if hasattr(one, "down_proj")]
    mlps = [(name, one) for name, one in mlps if hasattr(one, "gate_proj") or hasattr(one, "gate_up_proj")]
    mlps = [(name, one) for name, one in mlps if not isinstance(one, PackedMlp)]
    reasons = Counter[str]()
    for name, mlp in mlps:
        if reason := _replaced(model, name, mlp, opened, merges_all=merges_all):
            reasons[reason] += 1
    return len(mlps), reasons


def _replaced(model: Any, name: str, mlp: Any, opened: Callable[[], Pack], *, merges_all: bool) -> str:
    """Why kernels do not compute an MLP; empty if they do."""
    if reason := reason_against(mlp):
        return reason
    activation, w1, w2 = str(activation_of(mlp)), _merged(mlp), mlp.down_proj.weight.data
    number = 0
    if w1.is_cuda:
        try:
            number = torch_op.register(opened().bind(Weights(w1, w2, activation=activation, gated=True)))
        except RuntimeFailure as failure:
            reason = str(failure)
    if merges_all or not reason:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, PackedMlp(mlp, w1, activation, number))
    return reason


def reason_against(mlp: Any) -> str:
    """Why the operator cannot compute an MLP; empty if it can."""
    kind = type(mlp).__name__
    if kind not in FAMILIES:
        return f"{kind} is not one of {', '.join(sorted(FAMILIES))}"
    if activation_of(mlp) is None:
        return f"its activation {_module_of(mlp)} is neither SiLU nor the tanh form of GELU"
    for layer in _products(mlp):
        if type(layer) is not torch.nn.Linear:
            return f"one of its products is a {type(layer).__name__}: quantised, or with an adapter"
        if name_of(layer.weight.dtype) not in _DTYPES:
            return f"its weights are of {name_of(layer.weight.dtype)}, but kernels have {' or '.join(UNSCALED)}"
        if layer.bias is not None:
            return "it has biases"
    return ""


def _products(mlp: Any) -> list[Any]:
    front = [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]
    return [*front, mlp.down_proj]


def _module_of(mlp: Any) -> Any:
    """The activation module of an MLP; Phi-3 has a different name for it."""
    return getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None)


def activation_of(mlp: Any) -> str | None:
    """The operator's name for the activation of an MLP; None if it has none."""
    module = _module_of(mlp)
    name = _ACTIVATIONS.get(type(module).__name__)
    if name is None and isinstance(module, torch.nn.GELU) and module.approximate == "tanh":
        name = "gelu"
    try:
        return None if name is None else str(canonical(name))
    except InvalidInput:
        return None


def _merged(mlp: Any) -> torch.Tensor:
    """The rows of gate above those of up; the parameters become its halves."""
    if hasattr(mlp, "gate_up_proj"):
        found: torch.Tensor = mlp.gate_up_proj.weight.data
        return found
    gate, up = mlp.gate_proj, mlp.up_proj
    merged = torch.cat([gate.weight.data, up.weight.data])
    gate.weight.data, up.weight.data = merged.chunk(2)
    return merged
