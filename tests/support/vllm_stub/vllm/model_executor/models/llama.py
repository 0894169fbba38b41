"""vLLM's Llama as a plugin sees it: its constructor and its layers' MLPs with merged weights.

Source: https://docs.vllm.ai/en/stable/api/vllm/model_executor/models/llama/ and /contributing/model/basic/.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm import distributed


class _Linear(nn.Module):
    """A parallel linear layer: `weight` [out, in] of this rank; returns its output and a bias that is not added."""

    def __init__(self, rows: int, columns: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns).to(dtype) / columns**0.5, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(rows, dtype=dtype), requires_grad=False) if bias else None
        self.laid_out: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        weight = self.weight if self.laid_out is None else self.laid_out
        return nn.functional.linear(x, weight, self.bias), None


class _RowParallelLinear(_Linear):
    """Split over the ranks along its columns; it sums their outputs unless its creator does so later."""

    def __init__(self, rows: int, columns: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(rows, columns, bias, dtype)
        self.tp_size, self.reduce_results = distributed.get_tensor_model_parallel_world_size(), True

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        y, _ = super().forward(x)
        return distributed.tensor_model_parallel_all_reduce(y) if self.reduce_results and self.tp_size > 1 else y, None


class SiluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


class GeluAndMul(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.gelu(gate, approximate=self.approximate) * up


class LlamaMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_up_proj = _Linear(2 * config.intermediate_size, config.hidden_size, config.mlp_bias, config.dtype)
        self.down_proj = _RowParallelLinear(config.hidden_size, config.intermediate_size, config.mlp_bias, config.dtype)
        self.act_fn = GeluAndMul(config.gelu) if config.gelu else SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both, _ = self.gate_up_proj(x)
        y, _ = self.down_proj(self.act_fn(both))
        return y


class GatedMLP(LlamaMLP):
    """Part of a different model, whose output is scaled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0.5


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.mlp = config.mlp(config)


class _Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(config) for _ in range(config.num_hidden_layers)] + [nn.Identity()])


class LlamaForCausalLM(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.model = _Model(vllm_config.model_config.hf_config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers[:-1]:
            x = x + layer.mlp(x)
        return x
