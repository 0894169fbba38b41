"""The inputs of a decode step: vLLM's metadata, and the model's weights in the form that programs read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tuner.runtime.pytorch.formula import halves_first


class Program(Protocol):
    """A program for a layer, or for a run of its ops, such as `tuner.runtime.Layer`."""

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """A launch of it on a stream, with tensors by the pack's names."""

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Enqueues it on the current stream, and returns the rows of its last op."""

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor, for the maximum rows."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """vLLM's metadata for a decode step with one new token per sequence."""

    #: int32 length of each sequence, including its new token; 0 for an unused row.
    lengths: torch.Tensor
    #: int32 block numbers, a row for each sequence.
    table: torch.Tensor
    #: The cache of each layer: [blocks, KV heads, tokens, 2 head_dim], in the backend's memory layout.
    caches: list[torch.Tensor]
    #: int64 position of each row, for the first layer.
    slots: torch.Tensor

    @property
    def key(self) -> tuple[int, ...]:
        """The addresses of its tensors, and the shape of the table."""
        tensors = (self.lengths, self.table, *self.caches)
        return (*(one.data_ptr() for one in tensors), *self.table.shape)

    def halves(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, in memory order: heads or tokens first."""
        cache = self.caches[place]
        in_order = cache if cache.stride(1) > cache.stride(2) else cache.transpose(1, 2)
        keys, values = in_order.split(cache.shape[-1] // 2, dim=-1)
        return keys, values


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """A layer's weights as its program reads them, with folded norms. All except the first two share vLLM's memory."""

    #: First halves of all heads, then second halves; None for a first layer whose qkv vLLM computes.
    w_qkv: torch.Tensor | None
    b_qkv: torch.Tensor | None
    w_o: torch.Tensor
    #: Gate, then up.
    w_up: torch.Tensor
    w_down: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of vLLM with folded norms."""

    #: The decoder of embed_tokens, layers and norm.
    inner: Any
    #: The attention of each layer.
    attentions: list[Any]
    weights: list[LayerWeights]
    #: Radians per token for each pair of a head, fp32.
    frequencies: torch.Tensor

    @classmethod
    def of(cls, model: Any, *, copies_first: bool) -> Model:
        """The model inside vLLM's outer model. Every qkv is copied, the first one only with `copies_first`."""
        return cls(
            inner=model.model,
            attentions=[layer.self_attn.attn for layer in model.model.layers],
            weights=weights_of(model, copies_first=copies_first),
            frequencies=frequencies_of(model),
        )

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copied qkv weights."""
        copied = [tensor for one in self.weights for tensor in (one.w_qkv, one.b_qkv) if tensor is not None]
        return sum(one.numel() * one.element_size() for one in copied)


def weights_of(model: Any, *, copies_first: bool) -> list[LayerWeights]:
    """The weights of each layer, after the norms were folded into gate and up, and vLLM has changed the layout."""
    found = []
    for place, layer in enumerate(model.model.layers):
        attention, mlp, norm = layer.self_attn, layer.mlp, layer.input_layernorm
        qkv, is_copied = attention.qkv_proj, place > 0 or copies_first
        found.append(
            LayerWeights(
                w_qkv=halves_first(qkv.weight.data * norm.weight.data, attention.head_dim) if is_copied else None,
                b_qkv=halves_first(qkv.bias.data, attention.head_dim) if is_copied and qkv.bias is not None else None,
                w_o=attention.o_proj.weight.data,
                w_up=mlp.gate_up_proj.weight.data,
                w_down=mlp.down_proj.weight.data,
            )
        )
    return found


def frequencies_of(model: Any) -> torch.Tensor:
    """Radians per token for each pair of a head, fp32, on the device of the weights."""
    attention = model.model.layers[0].self_attn
    rotary = attention.rotary_emb
    return rotary._compute_inv_freq(rotary.base).float().to(attention.qkv_proj.weight.device).contiguous()


class Batch(ABC):
    """The programs for a number of sequences, and the buffers of their launches."""

    def __init__(self, model: Model, sequences: int) -> None:
        self.model, self.sequences = model, sequences
        self._launches: dict[tuple[int, ...], list[Any]] = {}

    def rows(self, columns: int) -> torch.Tensor:
        """A buffer with a row for each sequence."""
        return self.model.weights[0].w_o.new_zeros((self.sequences, columns))

    def launches(self, step: Step) -> list[Any]:
        """The launches of all layers, bound now or earlier.

        Raises:
            RuntimeFailure: the programs refuse these tensors.
        """
        if (found := self._launches.get(step.key)) is None:
            found = self._launches[step.key] = self._bound(step)
        return found

    @abstractmethod
    def _bound(self, step: Step) -> list[Any]:
        """The launches of all layers."""

    @abstractmethod
    def run(self, hidden: torch.Tensor, positions: torch.Tensor, step: Step, launches: list[Any]) -> torch.Tensor:
        """From embedded tokens to normalized rows [sequences, hidden]."""

    def of_cache(self, step: Step, place: int) -> dict[str, torch.Tensor]:
        """The tensors that a layer's attention reads."""
        keys, values = step.halves(place)
        return {
            "attention.keys": keys,
            "attention.values": values,
            "attention.lengths": step.lengths,
            "attention.pages": step.table,
        }

    def of_qkv(self, place: int) -> dict[str, torch.Tensor]:
        """The tensors of a layer's qkv."""
        own = self.model.weights[place]
        assert own.w_qkv is not None, "the first layer's is vLLM's own, and a model has two layers"
        bias = {} if own.b_qkv is None else {"qkv.bias": own.b_qkv}
        return {"qkv.w": own.w_qkv, "qkv.frequencies": self.model.frequencies, **bias}


def stream_of(rows: torch.Tensor) -> int:
    """The stream on which these rows are computed."""
    return torch.cuda.current_stream(rows.device).cuda_stream if rows.is_cuda else 0


def normed(rows: torch.Tensor, norm: Any) -> torch.Tensor:
    """The rows after a norm of vLLM."""
    return torch.nn.functional.rms_norm(rows, rows.shape[-1:], norm.weight, norm.variance_epsilon)
