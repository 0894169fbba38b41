"""A decode step of a vLLM model by a pack's layers: what runs in the place of its own layers, and when.

The outer model's `forward` is asked for each step, outside of what vLLM compiles. In a full graph it is asked when that
is captured. A step that no program was made for is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context

from tuner.runtime import RuntimeFailure

from .layers import LayerWeights, frequencies_of, weights_of
from .log import log
from .operator import calls

#: What computes a layer: takes tensors by name, and gives what enqueues it on a stream.
Bind = Callable[[Mapping[str, torch.Tensor]], Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What vLLM says of a decode step of one new token a sequence."""

    #: int32 of each sequence, its new token included; 0 for none.
    lengths: torch.Tensor
    #: int32, of each sequence a row of block numbers.
    table: torch.Tensor
    #: Of each layer: [blocks, KV heads, tokens, 2 head_dim], in memory as the backend has it.
    caches: list[torch.Tensor]
    #: int64 of each row, for the first layer.
    slots: torch.Tensor

    @property
    def key(self) -> tuple[int, ...]:
        """By where its tensors lie."""
        tensors = (self.lengths, self.table, *self.caches)
        return (*(one.data_ptr() for one in tensors), *self.table.shape)


@dataclass(kw_only=True)
class Batch:
    """The program of so many sequences, and what its launches read and write."""

    bind: Bind
    queries: torch.Tensor
    #: What the layers hand on: of each the next one's.
    streams: list[torch.Tensor]
    #: Of the last layer's qkv, which nobody reads.
    unread: torch.Tensor
    no_lengths: torch.Tensor
    #: By `Step.key`, each layer's launches.
    launches: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)


class Decoder:
    """The layers of a model by programs."""

    def __init__(self, model: Any, binds: Mapping[int, Bind]) -> None:
        """`model` is the outer one, whose norms are folded; `binds` by sequences. It keeps a copy of each qkv but the
        first."""
        self._model, self._forward = model.model, model.forward
        self._attentions = [layer.self_attn.attn for layer in self._model.layers]
        self._weights: list[LayerWeights] = weights_of(model)
        self._frequencies = frequencies_of(model)
        self._batches = {sequences: self._batch(sequences, bind) for sequences, bind in binds.items()}

    @property
    def copied_bytes(self) -> int:
        """Of the qkv that lie twice."""
        copied = [tensor for one in self._weights for tensor in (one.w_qkv, one.b_qkv) if tensor is not None]
        return sum(one.numel() * one.element_size() for one in copied)

    def _batch(self, sequences: int, bind: Bind) -> Batch:
        w_o = self._weights[0].w_o
        hidden, columns = w_o.shape

        def rows(count: int) -> torch.Tensor:
            return w_o.new_zeros((sequences, count))

        return Batch(
            bind=bind,
            queries=rows(columns),
            streams=[rows(hidden), rows(hidden)],
            unread=rows(columns),
            no_lengths=torch.zeros(sequences, dtype=torch.int32, device=w_o.device),
        )

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        """As the outer model's: normed rows [tokens, hidden]."""
        step = None if others or intermediate_tensors is not None else self._step(positions)
        launches = None if step is None else self._launches(len(positions), step)
        if step is None or launches is None:
            return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **others)
        hidden = self._model.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        return self._run(hidden, positions, step, launches)

    def _step(self, positions: torch.Tensor) -> Step | None:
        """What the programs can compute; None where vLLM runs something else."""
        context = get_forward_context()
        if context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE or not isinstance(context.attn_metadata, dict):
            return None
        if positions.dim() != 1 or len(positions) not in self._batches:
            return None
        given = [context.attn_metadata.get(one.layer_name) for one in self._attentions]
        if any(one is not given[0] for one in given) or (metadata := given[0]) is None:
            return None
        is_decode = metadata.max_query_len == 1 and len(metadata.seq_lens) == len(positions)
        if not is_decode or getattr(metadata, "use_cascade", False):
            return None
        slots = context.slot_mapping.get(self._attentions[0].layer_name)
        if slots is None:
            return None
        caches = [one.kv_cache for one in self._attentions]
        return Step(lengths=metadata.seq_lens, table=metadata.block_table, caches=caches, slots=slots)

    def _launches(self, sequences: int, step: Step) -> list[Any] | None:
        batch = self._batches[sequences]
        if (found := batch.launches.get(step.key)) is None:
            try:
                found = [batch.bind(self._tensors(batch, step, place)) for place in range(len(self._weights))]
            except RuntimeFailure as failure:
                log.warning("tuner: layers of %d sequences stay vLLM's own: %s", sequences, failure)
                del self._batches[sequences]
                return None
            batch.launches[step.key] = found
        return found

    def _tensors(self, batch: Batch, step: Step, place: int) -> dict[str, torch.Tensor]:
        """Of a layer's program, by the pack's names."""
        own, is_last = self._weights[place], place == len(self._weights) - 1
        behind = self._weights[place if is_last else place + 1]
        keys, values = self._halves(step.caches[place])
        next_keys, next_values = self._halves(step.caches[0 if is_last else place + 1])
        assert behind.w_qkv is not None, "the first layer's is vLLM's own, and a model has two layers"
        found = {
            "q": batch.queries,
            "attention.keys": keys,
            "attention.values": values,
            "attention.lengths": step.lengths,
            "attention.pages": step.table,
            "o_proj.w": own.w_o,
            "residual": batch.streams[place % 2],
            "gate_up.w": own.w_up,
            "down.w": own.w_down,
            "down": batch.streams[(place + 1) % 2],
            # Behind the last layer nobody reads a qkv: lengths of 0 write to no cache.
            "qkv": batch.unread if is_last else batch.queries,
            "qkv.w": behind.w_qkv,
            "qkv.keys": next_keys,
            "qkv.values": next_values,
            "qkv.lengths": batch.no_lengths if is_last else step.lengths,
            "qkv.pages": step.table,
            "qkv.frequencies": self._frequencies,
        }
        return found | ({} if behind.b_qkv is None else {"qkv.bias": behind.b_qkv})

    def _halves(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, in the order of the memory: heads or tokens first."""
        in_order = cache if cache.stride(1) >= cache.stride(2) else cache.transpose(1, 2)
        keys, values = in_order.split(cache.shape[-1] // 2, dim=-1)
        return keys, values

    def _run(self, hidden: torch.Tensor, positions: torch.Tensor, step: Step, launches: list[Any]) -> torch.Tensor:
        batch, first = self._batches[len(positions)], self._model.layers[0]
        attention = first.self_attn
        batch.streams[0].copy_(hidden)
        qkv, _ = attention.qkv_proj(_normed(hidden, first.input_layernorm))
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        turn = attention.rotary_emb.forward_cuda if hidden.is_cuda else attention.rotary_emb.forward_native
        q, k = turn(positions, q, k)
        batch.queries.copy_(q)
        heads, own = (len(positions), -1, attention.head_dim), attention.attn
        own.impl.do_kv_cache_update(own, k.view(heads), v.view(heads), own.kv_cache, step.slots)
        stream = torch.cuda.current_stream(hidden.device).cuda_stream if hidden.is_cuda else 0
        for one in launches:
            one.enqueue(stream)
        calls["layers"] += len(launches)
        return _normed(batch.streams[len(launches) % 2], self._model.norm)


def _normed(rows: torch.Tensor, norm: Any) -> torch.Tensor:
    return torch.nn.functional.rms_norm(rows, rows.shape[-1:], norm.weight, norm.variance_epsilon)


def install(model: Any, binds: Mapping[int, Bind]) -> None:
    """From now on decode steps of so many sequences are computed by these; the model's norms are folded.

    Weights that are loaded again afterwards would be folded no more, so that is refused.
    """
    decoder = Decoder(model, binds)
    model.forward, model.load_weights = decoder.forward, _refuse_to_load
    copied = decoder.copied_bytes / 2**20
    listed = ", ".join(map(str, sorted(binds)))
    log.info("tuner: layers run the pack's kernels at %s sequences; %.0f MiB of qkv lie twice", listed, copied)


def _refuse_to_load(*_: Any) -> None:
    problem = "norms are folded into the weights of this model, whose layers run a pack's kernels"
    raise NotImplementedError(f"{problem}: start vLLM again, or with TUNER_PACK of a pack without layers")
