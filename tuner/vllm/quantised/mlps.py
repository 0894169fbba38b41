"""Quantised MLPs inside vLLM: a pack's kernels compute their numbers of rows, vLLM's layers all others.

Weights are read as loaded, before vLLM changes their layout for its own kernels. Since those compute all other rows,
both copies stay on the card. If the pack's kernels do not support a format, vLLM computes the MLP, and the log has the
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tuner.core.problem.quantisation import quantisation_of
from tuner.packs.read import read_pack
from tuner.packs.shapes import AnyShape, ChainShape, LayerShape
from tuner.runtime import Program
from tuner.runtime.checkpoints import feed_forward

from ..linear import DTYPES, reason_against
from ..log import log
from ..mlp import reason_against_family
from ..operator import activated, calls, define, use_activation
from ..pack import UNFIT, VARIABLE, opened, sentence
from . import on_card

#: The ops of such a block, by their names in `tune-model`, and the inputs of a call.
RUN, INPUT = ("up", "down"), "x"
#: The activation of such a block.
_ACTIVATION = "silu"
#: The tensors that a method registers with a layer, by their names in a checkpoint. Source: `create_weights` of vLLM
#: 0.26's methods.
_NAMES = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_zero_point", "weight_g_idx", "weight",
          "weight_scale", "weight_scale_inv", "input_scale")  # fmt: skip
#: The name of a merged layer's parts in a checkpoint's config.
_FIRST = "gate_proj"
#: The roles of tensors that are not weights.
_PASSED = ("input", "intermediate", "output")
_PARTS = ("gate_up_proj", "act_fn", "down_proj")
#: MLPs whose weights are laid out concurrently, on the host each on a core.
_NUM_AT_ONCE = 8

Tensors = dict[str, torch.Tensor]
Kernels = Mapping[range, Program]


@dataclass(frozen=True, kw_only=True)
class Laid:
    """An MLP with weights in the layout of a pack's kernels."""

    name: str
    kernels: Kernels
    tensors: Tensors


def tensors_of(layer: Any, name: str) -> Tensors:
    """A layer's parameters on the host, by the checkpoint's names for the module `name`. Merged layers are one product
    with more rows, and their scales become scales of its rows."""
    found = {f"{name}.{what}": held.data.cpu() for what in _NAMES if (held := getattr(layer, what, None)) is not None}
    widths = getattr(layer, "logical_widths", None) or getattr(layer, "output_partition_sizes", None) or []
    scale = found.get(f"{name}.weight_scale")
    if scale is not None and len(widths) > 1 and scale.numel() == len(widths):
        rows = torch.repeat_interleave(scale.reshape(-1), torch.tensor(widths))
        found[f"{name}.weight_scale"] = rows[:, None]
    if (packed := found.get(f"{name}.weight_packed")) is not None:
        found[f"{name}.weight_shape"] = torch.tensor([packed.shape[0], 8 * packed.shape[1]])
    if (order := found.get(f"{name}.g_idx")) is not None and not order.numel():
        del found[f"{name}.g_idx"]
    return found


def laid_out(mlp: Any, name: str, config: Mapping[str, Any], kernel: Mapping[str, Any]) -> Tensors:
    """The tensors of an MLP in the layout of a kernel's call, on the device of its weights.

    Raises:
        InvalidInput: the kernel cannot read the weights.
    """
    up, down = f"{name}.{_FIRST}", f"{name}.down_proj"
    if (found := _laid_out_on_card(mlp, (up, down), config, kernel)) is not None:
        return found
    tensors = {**tensors_of(mlp.gate_up_proj, up), **tensors_of(mlp.down_proj, down)}
    device = next(mlp.down_proj.parameters()).device
    arrays = feed_forward(tensors, config, kernel, up=up, down=down)
    return {what: torch.from_numpy(array).to(device) for what, array in arrays.items()}


def _laid_out_on_card(
    mlp: Any, names: tuple[str, str], config: Mapping[str, Any], kernel: Mapping[str, Any]
) -> Tensors | None:
    """The same tensors, laid out where the weights are; None if the host has to."""
    found: Tensors = {}
    for op, name, layer in zip(RUN, names, (mlp.gate_up_proj, mlp.down_proj), strict=True):
        if (laid := on_card.laid_out(layer, name, config, kernel.get(f"{op}.w", {}))) is None:
            return None
        found[f"{op}.w"], channels = laid
        if channels is not None:
            found[f"{op}.channel_scale_factors"] = channels
    needed = {name for name, one in kernel.items() if one["role"] not in _PASSED}
    return found if set(found) == needed else None


def read(model: Any, model_config: Any, path: Path) -> list[Laid]:
    """The quantised MLPs of a loaded model that the pack has kernels for; the log says why it has none for the others.
    A quantised model may have plain ones, which are not among these."""
    if not (config := quantisation_of(vars(model_config.hf_config))):
        return []
    try:
        kernels = _kernels(path, str(model_config.dtype).removeprefix("torch."))
    except UNFIT as error:
        log.warning("tuner: quantised MLPs keep vLLM's implementation: %s", sentence(error))
        return []
    if not kernels:
        return []
    found = [(name, mlp) for name, mlp in model.named_modules() if all(hasattr(mlp, part) for part in _PARTS)]
    named = [(name, mlp) for name, mlp in found if any(map(reason_against, (mlp.gate_up_proj, mlp.down_proj)))]
    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        made = list(pool.map(lambda one: _laid_or_why_not(one[0], one[1], config, kernels), named))
    for reason, count in Counter(one for one in made if isinstance(one, str)).items():
        log.info("tuner: %d quantised MLPs keep vLLM's implementation: %s", count, reason)
    return [one for one in made if isinstance(one, Laid)]


def _laid_or_why_not(name: str, mlp: Any, config: Mapping[str, Any], kernels: Kernels) -> Laid | str:
    """Its weights laid out, or a reason."""
    if reason := _reason_against(mlp):
        return reason
    try:
        tensors = laid_out(mlp, name, config, next(iter(kernels.values())).artifact.tensors)
    except UNFIT as error:
        return f"{VARIABLE}: {error}".replace(name, "an MLP")  # so that equal reasons are counted
    return Laid(name=name, kernels=kernels, tensors=tensors)


def _reason_against(mlp: Any) -> str:
    if reason := reason_against_family(mlp):
        return reason
    if type(mlp.act_fn).__name__ != "SiluAndMul":
        return f"its activation is {type(mlp.act_fn).__name__}"
    if mlp.down_proj.tp_size > 1:
        return "it is split over ranks"
    has_biases = any(getattr(one, "bias", None) is not None for one in (mlp.gate_up_proj, mlp.down_proj))
    return "it has biases" if has_biases else ""


@cache
def _kernels(path: Path, dtype: str) -> Kernels:
    """The kernels of the pack's chain for such a block, by rows; empty if there is none for activations of this
    type.
    """
    entries = [one for one in read_pack(path.read_bytes()).entries if isinstance(one.shape, LayerShape | ChainShape)]
    for number, entry in enumerate(entries):
        if _is_block(entry.shape, dtype):
            return {
                range(rung.m_lo, rung.m_hi + 1): program
                for rung in entry.rungs
                if (program := opened(path).layer(number=number, sequences=rung.m_hi, shares_sms=True)) is not None
            }
    return {}


def _is_block(shape: AnyShape, dtype: str) -> bool:
    if not isinstance(shape, ChainShape) or shape.names != RUN:
        return False
    return shape.dtype == DTYPES.get(dtype) and bool(shape.ops[0].get("weights"))


class QuantisedMlp(torch.nn.Module):  # type: ignore[misc]
    """vLLM's MLP with the operator; its layers keep vLLM's implementation."""

    def __init__(self, mlp: Any, laid: Laid) -> None:
        super().__init__()
        self.mlp = mlp
        # The operator finds the MLP by the address of this tensor, so that equal layers are compiled once.
        self.register_buffer("laid", next(iter(laid.tensors.values())), persistent=False)
        _bound[self.laid.data_ptr()] = mlp, laid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [..., hidden] to the same shape."""
        y: torch.Tensor = torch.ops.tuner_vllm.quantised_mlp(x.reshape(-1, x.shape[-1]), self.laid)
        return y.view(x.shape)


#: MLPs with their kernels, by the address of their first tensor; kept until the process ends.
_bound: dict[int, tuple[Any, Laid]] = {}


def install(model: Any, found: list[Laid]) -> None:
    """Replaces each of the MLPs with the operator."""
    for one in found:
        parent, _, last = one.name.rpartition(".")
        mlp = model.get_submodule(one.name)
        use_activation(_ACTIVATION, mlp.act_fn)
        setattr(model.get_submodule(parent), last, QuantisedMlp(mlp, one))
    if found:
        log.info("tuner: %d of them are quantised; vLLM's layers compute rows without a kernel", len(found))


def _run(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    mlp, laid = _bound[weights.data_ptr()]
    program = next((one for rows, one in laid.kernels.items() if x.shape[0] in rows), None)
    if program is None or not x.is_contiguous():
        calls["library"] += 1
        return _by_layers(mlp, x)
    calls["kernel"] += 1
    return program({INPUT: x, **laid.tensors})


def _by_layers(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    """The MLP by vLLM's layers. Its own `forward` would call the activation as vLLM compiles it for any columns."""
    pairs, _ = mlp.gate_up_proj(x)
    found: torch.Tensor = mlp.down_proj(activated(pairs, _ACTIVATION))[0]
    return found


def _fake(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


define("quantised_mlp(Tensor x, Tensor weights) -> Tensor", _run, _fake)
