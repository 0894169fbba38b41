"""The sums and norms before and after an MLP, as kernels that overlap with its launches.

vLLM's own kernel ends before a pack's launch begins, whose weights are then requested late: 2 to 3 µs per layer. This
one lets its dependents begin at once. A pack's kernel requests its weights meanwhile, and waits for the rows. The norm
of the next layer begins before the MLP ends, and waits.

The sum before an MLP is kept in fp32 until the next layer's norm adds the MLP's output to it: code that vLLM compiles
computes it again from both summands there, so it is not rounded either, and rounding it moves logits farther from fp32.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from .. import operator
from ..layers import FAMILIES

#: Layers that call these norms with rows and residual, but the first with rows alone, by module and class of vLLM 0.26.
CALLERS = FAMILIES | {("qwen3", "Qwen3DecoderLayer")}
_NAMES = ("input_layernorm", "post_attention_layernorm")


class PackedNorm(torch.nn.Module):  # type: ignore[misc]
    """vLLM's norm with the operator; its parameter has the same name."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
        self._own = [norm]  # no module of this one, whose parameter would have two names
        #: Whether the sum is returned in fp32.
        self.is_wide = False

    def forward(self, rows: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """Returns the normed sum of rows and residual [..., hidden], and the sum; for rows alone, the rows normed by
        vLLM."""
        if residual is None:
            return self._own[0](rows)
        wide = rows.shape[-1]
        flat = rows.reshape(-1, wide), residual.reshape(-1, wide)
        normed, added = torch.ops.tuner_vllm.add_norm(*flat, self.weight, self.variance_epsilon, self.is_wide)
        return normed.view(rows.shape), added.view(rows.shape)


def replace_norms(model: Any, *, keeps_sums: bool = True) -> int:
    """Replaces the plain norms of layers whose MLP runs a pack's kernels; returns how many. Norms after an all-reduce,
    with which vLLM may fuse them, are kept. With `keeps_sums`, sums that only another one of these norms reads are
    fp32."""
    count = 0
    for layer in list(model.modules()):
        kind = type(layer)
        if (kind.__module__.rpartition(".")[2], kind.__name__) not in CALLERS:
            continue
        mlp = getattr(layer.mlp, "mlp", layer.mlp)
        if not type(layer.mlp).__module__.startswith("tuner.") or mlp.down_proj.tp_size > 1:
            continue
        for name in _NAMES:
            norm = getattr(layer, name)
            if type(norm).__name__ == "RMSNorm" and norm.has_weight and norm.variance_size_override is None:
                setattr(layer, name, PackedNorm(norm))
                count += 1
    for layers in [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)] if keeps_sums else []:
        for layer, following in pairwise(layers):
            before, behind = getattr(layer, _NAMES[1], None), getattr(following, _NAMES[0], None)
            if isinstance(before, PackedNorm) and isinstance(behind, PackedNorm):
                before.is_wide = True
    return count


def _run(
    rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, is_wide: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, added = _fake(rows, residual, weight, eps, is_wide)
    if rows.is_cuda:
        from .kernel import launch

        launch(rows, residual, added, normed, weight, eps)
        return normed, added
    from vllm import ir

    normed, _ = ir.ops.fused_add_rms_norm(rows, residual, weight, eps)
    return normed, added.copy_(rows.float() + residual.float())


def _fake(
    rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, is_wide: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if is_wide else rows.dtype
    return torch.empty_like(rows), torch.empty_like(residual, dtype=dtype)


operator.define(
    "add_norm(Tensor rows, Tensor residual, Tensor weight, float eps, bool is_wide) -> (Tensor, Tensor)", _run, _fake
)
