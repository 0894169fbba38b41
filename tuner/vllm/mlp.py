"""MLPs of vLLM's models: which of them a pack's kernels can compute, and how they are replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_reduce

from tuner.runtime import Weights

from . import normed_run, operator
from .linear import reason_against
from .log import log
from .pack import UNFIT, opened, sentence

#: The MLPs whose whole computation is down(activation(gate) * up), by module and class of vLLM 0.26.
FAMILIES = {
    ("gemma", "GemmaMLP"),
    ("gemma2", "Gemma2MLP"),
    ("gemma3", "Gemma3MLP"),
    ("llama", "LlamaMLP"),  # Phi-3 as well
    ("mistral", "MistralMLP"),
    ("qwen2", "Qwen2MLP"),  # Qwen 3, too
}
_PARTS = ("gate_up_proj", "act_fn", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Found:
    """An MLP of a model, as loaded, before vLLM changes the layout of its weights."""

    #: Its name in the model.
    name: str
    #: Why vLLM computes it; empty if the operator can.
    reason: str
    #: The weights of its two products; empty if there is a reason.
    weights: tuple[Any, ...] = ()


def found_in(model: Any) -> list[Found]:
    """All MLPs of a model: every module with the three parts of one. An MLP that the operator has already replaced has
    no activation module, and is left out."""
    mlps = [(name, one) for name, one in model.named_modules() if all(hasattr(one, part) for part in _PARTS)]
    return [_found(name, mlp) for name, mlp in mlps]


def _found(name: str, mlp: Any) -> Found:
    reason = _reason_against(mlp)
    weights = () if reason else (mlp.gate_up_proj.weight, mlp.down_proj.weight)
    return Found(name=name, reason=reason, weights=weights)


def reason_against_family(mlp: Any) -> str:
    """Why its computation may be another one; empty if it is that of a known family."""
    kind = type(mlp)
    if (kind.__module__.rpartition(".")[2], kind.__name__) in FAMILIES:
        return ""
    return f"{kind.__name__} is not one of {', '.join(sorted(name for _, name in FAMILIES))}"


def _reason_against(mlp: Any) -> str:
    if reason := reason_against_family(mlp):
        return reason
    if _activation_of(mlp) is None:
        return f"its activation {mlp.act_fn} is neither SiLU nor the tanh form of GELU"
    for layer in (mlp.gate_up_proj, mlp.down_proj):
        if reason := reason_against(layer):
            return reason
        if getattr(layer, "bias", None) is not None:
            return "it has biases"
    return ""


def _activation_of(mlp: Any) -> str | None:
    """The operator's name for its activation; None if unsupported."""
    kind = type(mlp.act_fn).__name__
    if kind == "GeluAndMul":
        return "gelu" if mlp.act_fn.approximate == "tanh" else None
    return {"SiluAndMul": "silu"}.get(kind)


class PackedMlp(torch.nn.Module):  # type: ignore[misc]
    """vLLM's MLP with the operator; its parameters have the same names."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        # vLLM's own layers: weights are loaded into them as usual.
        self.gate_up_proj, self.down_proj = mlp.gate_up_proj, mlp.down_proj
        self.activation = str(_activation_of(mlp))
        # As in the layer: no sum if it is not split over ranks, or if its caller sums later.
        self.is_summed = mlp.down_proj.reduce_results and mlp.down_proj.tp_size > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [..., hidden] to the same shape, summed over the ranks."""
        rows = x.reshape(-1, x.shape[-1])
        y = torch.ops.tuner_vllm.mlp(rows, self.gate_up_proj.weight, self.down_proj.weight, self.activation)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return tensor_model_parallel_all_reduce(y) if self.is_summed else y


def replace_mlps(model: Any, found: list[Found], path: Path, *, laid: Collection[str] = ()) -> None:
    """Replaces each MLP for which the pack has kernels, and logs how many, and why not the others. Those named in
    `laid` have kernels, too, but others replace them."""
    reasons = Counter[str]()
    for one in found:
        if one.name in laid:
            continue
        mlp = model.get_submodule(one.name)
        reason = one.reason or _bind(one, str(_activation_of(mlp)), path)
        if reason:
            reasons[reason] += 1
            continue
        operator.use_activation(str(_activation_of(mlp)), mlp.act_fn)
        # On a CPU, vLLM converts the weights to a different form and drops the originals.
        mlp.gate_up_proj.weight, mlp.down_proj.weight = one.weights
        parent, _, last = one.name.rpartition(".")
        setattr(model.get_submodule(parent), last, PackedMlp(mlp))
    where = "" if torch.cuda.is_available() else " (on a CPU PyTorch's products)"
    log.info("tuner: %d of %d MLPs run the kernels of %s%s", len(found) - reasons.total(), len(found), path, where)
    if not found:
        log.warning("tuner: the model has no MLP with a gate_up_proj, an act_fn and a down_proj")
    for reason, count in reasons.items():
        log.info("tuner: %d keep vLLM's implementation: %s", count, reason)


def _bind(one: Found, activation: str, path: Path) -> str:
    """Prepares the kernels for weights at their current addresses. Returns the reason if there are none; a CPU needs
    none.
    """
    w1, w2 = (weight.data for weight in one.weights)
    if not w1.is_cuda:
        return "its weights are not on the card (offloading)" if torch.cuda.is_available() else ""
    kernels, reasons = list[operator.Kernels](), list[str]()
    try:
        ffn = opened(path).bind(Weights(w1, w2, activation=activation, gated=True))
        kernels.append(operator.FfnKernels(ffn))
    except UNFIT as error:
        reasons.append(sentence(error))
    try:
        if (run := normed_run.of_pack(path, w1, w2, activation)) is not None:
            kernels.append(run)
    except UNFIT as error:
        reasons.append(sentence(error))
    if kernels:
        operator.bind(w1, w2, kernels)
        return ""
    return "; ".join(dict.fromkeys(reasons))
