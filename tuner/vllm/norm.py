"""The sum and the norm before an MLP, as a kernel during which the MLP's launch begins.

vLLM's own kernel ends before a pack's launch begins, whose weights are then requested late: 2 to 3 µs per layer. This
one lets its dependents begin at once. A pack's kernel requests its weights meanwhile, and waits for the rows.
"""

from __future__ import annotations

from typing import Any

import torch

from . import operator
from .layers import FAMILIES

#: Layers that call `post_attention_layernorm(rows, residual)` before their MLP, by module and class of vLLM 0.26.
CALLERS = FAMILIES | {("qwen3", "Qwen3DecoderLayer")}
_NAME = "post_attention_layernorm"


class PackedNorm(torch.nn.Module):  # type: ignore[misc]
    """vLLM's norm with the operator; its parameter has the same name."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, rows: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., hidden] twice to the normed sum, and the sum."""
        wide = rows.shape[-1]
        flat = rows.reshape(-1, wide), residual.reshape(-1, wide)
        normed, added = torch.ops.tuner_vllm.add_norm(*flat, self.weight, self.variance_epsilon)
        return normed.view(rows.shape), added.view(rows.shape)


def replace_norm(layer: Any) -> bool:
    """Replaces the norm before a layer's MLP, if it is a plain one and nothing comes between. Behind an all-reduce,
    with which vLLM may fuse it, it stays."""
    norm: Any = getattr(layer, _NAME, None)
    kind = type(layer)
    if (kind.__module__.rpartition(".")[2], kind.__name__) not in CALLERS or type(norm).__name__ != "RMSNorm":
        return False
    if layer.mlp.down_proj.tp_size > 1 or not norm.has_weight or norm.variance_size_override is not None:
        return False
    setattr(layer, _NAME, PackedNorm(norm))
    return True


def add_squares(stream: torch.Tensor, rows: torch.Tensor, squares: torch.Tensor) -> None:
    """Adds rows [rows, hidden] to the stream in place, and writes the sums of squares of its rows, fp32."""
    if stream.is_cuda:
        from .norm_kernel import launch

        launch(rows, stream, stream, squares=squares)
        return
    stream.add_(rows)
    squares.copy_(stream.float().square().sum(dim=-1))


def _run(
    rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if rows.is_cuda:
        from .norm_kernel import launch

        normed, added = torch.empty_like(rows), torch.empty_like(residual)
        launch(rows, residual, added, normed=normed, weight=weight, eps=eps)
        return normed, added
    both = rows.float() + residual.float()
    factor = torch.rsqrt(both.square().mean(dim=-1, keepdim=True) + eps)
    return (both * factor).to(rows.dtype) * weight, both.to(residual.dtype)


def _fake(
    rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(rows), torch.empty_like(residual)


operator.define("add_norm(Tensor rows, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)", _run, _fake)
