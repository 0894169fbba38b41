"""Decode steps of a vLLM model with a pack's programs: what replaces its layers, and when.

The outer model's `forward` is called for each step, outside the code that vLLM compiles. In a full graph it is called
only during the capture. The model itself computes all other steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context

from tuner.runtime import RuntimeFailure

from .layers import Programs
from .log import log
from .operator import calls
from .runs import Runs
from .step import Batch, Model, Step
from .whole import WholeLayers


class Decoder:
    """The layers of a model, computed by programs."""

    def __init__(self, model: Any, programs: Mapping[int, Programs]) -> None:
        """`model` is the outer one, with folded norms; `programs` by number of sequences."""
        self._forward = model.forward
        self.model = Model.of(model, copies_first=any(len(one) > 1 for one in programs.values()))
        self._batches = {sequences: _batch(self.model, found, sequences) for sequences, found in programs.items()}

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Same as the outer model's `forward`: returns normalized rows [tokens, hidden]."""
        step = None if others or intermediate_tensors is not None else self._step(positions)
        launches = None if step is None else self._launches(len(positions), step)
        if step is None or launches is None:
            return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **others)
        hidden = self.model.inner.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        calls["layers"] += len(self.model.attentions)
        return self._batches[len(positions)].run(hidden, positions, step, launches)

    def _step(self, positions: torch.Tensor) -> Step | None:
        """The step's result; None if vLLM has to compute it."""
        context, attentions = get_forward_context(), self.model.attentions
        if context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE or not isinstance(context.attn_metadata, dict):
            return None
        if positions.dim() != 1 or len(positions) not in self._batches:
            return None
        given = [context.attn_metadata.get(one.layer_name) for one in attentions]
        if any(one is not given[0] for one in given) or (metadata := given[0]) is None:
            return None
        is_decode = metadata.max_query_len == 1 and len(metadata.seq_lens) == len(positions)
        if not is_decode or getattr(metadata, "use_cascade", False):
            return None
        slots = context.slot_mapping.get(attentions[0].layer_name)
        if slots is None:
            return None
        caches = [one.kv_cache for one in attentions]
        return Step(lengths=metadata.seq_lens, table=metadata.block_table, caches=caches, slots=slots)

    def _launches(self, sequences: int, step: Step) -> list[Any] | None:
        """The launches of all layers; None once the programs have refused vLLM's tensors."""
        try:
            return self._batches[sequences].launches(step)
        except RuntimeFailure as failure:
            log.warning("tuner: layers of %d sequences keep vLLM's implementation: %s", sequences, failure)
            del self._batches[sequences]
            return None


def _batch(model: Model, programs: Programs, sequences: int) -> Batch:
    if len(programs) == 1:
        return WholeLayers(model, programs[0], sequences)
    attention, mlp = programs
    return Runs(model, attention, mlp, sequences)


def install(model: Any, programs: Mapping[int, Programs]) -> None:
    """Makes these programs compute decode steps with their numbers of sequences; the model's norms are folded.

    Weights that are loaded later would not be folded, so loading them is refused.
    """
    decoder = Decoder(model, programs)
    model.forward, model.load_weights = decoder.forward, _refuse_to_load
    copied = decoder.model.copied_bytes / 2**20
    listed = ", ".join(map(str, sorted(programs)))
    log.info(
        "tuner: layers run the pack's kernels at %s sequences; %.0f MiB of qkv weights are stored twice", listed, copied
    )


def _refuse_to_load(*_: Any) -> None:
    problem = "norms are folded into the weights of this model, whose layers run a pack's kernels"
    raise NotImplementedError(f"{problem}: restart vLLM, or set TUNER_PACK to a pack without layers")
