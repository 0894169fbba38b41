"""A decode step with whole layers: one program from an attention to the next layer's qkv."""

from __future__ import annotations

from typing import Any

import torch

from .step import Batch, Model, Program, Step, normed, stream_of


class WholeLayers(Batch):
    """vLLM and PyTorch compute the embedding, the first norm and qkv, and the last norm."""

    def __init__(self, model: Model, program: Program, sequences: int) -> None:
        super().__init__(model, sequences)
        hidden, columns = model.weights[0].w_o.shape
        self._program, self._queries = program, self.rows(columns)
        #: The residual streams from each layer to the next.
        self._streams = [self.rows(hidden), self.rows(hidden)]
        #: The output of the last layer's qkv, which is not used.
        self._unread = self.rows(columns)
        self._no_lengths = torch.zeros(sequences, dtype=torch.int32, device=self._queries.device)

    def _bound(self, step: Step) -> list[Any]:
        return [self._program.bind(self._tensors(step, place)) for place in range(len(self.model.weights))]

    def _tensors(self, step: Step, place: int) -> dict[str, torch.Tensor]:
        """Tensors of a layer's program, by the pack's names."""
        own, is_last = self.model.weights[place], place == len(self.model.weights) - 1
        next_keys, next_values = step.halves(0 if is_last else place + 1)
        return {
            "q": self._queries,
            **self.of_cache(step, place),
            "o_proj.w": own.w_o,
            "residual": self._streams[place % 2],
            "gate_up.w": own.w_up,
            "down.w": own.w_down,
            "down": self._streams[(place + 1) % 2],
            # After the last layer, nothing reads the qkv; with lengths of 0 it writes to no cache.
            "qkv": self._unread if is_last else self._queries,
            **self.of_qkv(place if is_last else place + 1),
            "qkv.keys": next_keys,
            "qkv.values": next_values,
            "qkv.lengths": self._no_lengths if is_last else step.lengths,
            "qkv.pages": step.table,
        }

    def run(self, hidden: torch.Tensor, positions: torch.Tensor, step: Step, launches: list[Any]) -> torch.Tensor:
        """Same as in `Batch`."""
        first = self.model.inner.layers[0]
        attention = first.self_attn
        self._streams[0].copy_(hidden)
        qkv, _ = attention.qkv_proj(normed(hidden, first.input_layernorm))
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        turn = attention.rotary_emb.forward_cuda if hidden.is_cuda else attention.rotary_emb.forward_native
        q, k = turn(positions, q, k)
        self._queries.copy_(q)
        heads, own = (len(positions), -1, attention.head_dim), attention.attn
        own.impl.do_kv_cache_update(own, k.view(heads), v.view(heads), own.kv_cache, step.slots)
        stream = stream_of(hidden)
        for one in launches:
            one.enqueue(stream)
        return normed(self._streams[len(launches) % 2], self.model.inner.norm)
