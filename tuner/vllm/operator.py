"""`torch.ops.tuner_vllm.mlp`: the operator of packs, which finds its kernel by the weights.

A graph that names no kernel is the same for all layers of one shape, so vLLM compiles it once. Weights that are loaded
again in place keep their kernels. Where they lie elsewhere afterwards, PyTorch's own products compute them.
"""

from __future__ import annotations

import atexit
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from tuner.runtime import Ffn, torch_op

from .log import log


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """Kernels that were prepared for weights."""

    #: Number of `torch.ops.tuner.ffn`.
    number: int
    ffn: Ffn


#: By `key_of` their weights.
_bound: dict[tuple[Any, ...], _Bound] = {}
#: How often an MLP ran, or was captured, by what computed it: "kernel" of the pack, "library" where the pack leaves
#: this many rows to it, "unbound" where no kernel was prepared for these weights; and "layers" of whole steps. Replays
#: of a graph are not counted.
calls: Counter[str] = Counter()


def key_of(w1: torch.Tensor, w2: torch.Tensor) -> tuple[Any, ...]:
    """By what two weights are known: where they lie, and in what form."""
    return w1.data_ptr(), w2.data_ptr(), w1.shape, w2.shape, w1.stride(), w2.stride(), w1.dtype, w1.device


def bind(ffn: Ffn) -> None:
    """From now on the operator computes by it what has its weights."""
    _bound[key_of(ffn.weights.w1, ffn.weights.w2)] = _Bound(number=torch_op.register(ffn), ffn=ffn)


def _run(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
    known = _bound.get(key_of(w1, w2))
    if known is not None and known.ffn.is_kernel(x.shape[0]):
        calls["kernel"] += 1
        found: torch.Tensor = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, activation, True, known.number)
        return found
    calls["unbound" if known is None else "library"] += 1
    if known is None and x.is_cuda and calls["unbound"] == 1:
        log.warning("tuner: weights lie elsewhere than when kernels were prepared; PyTorch's products compute them")
    # What the model's own layers are given needs no check, which takes the host longer than the products' launches.
    return torch_op.by_torch(x, w1, w2, None, None, None, None, activation, True)


def _fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
    return x.new_empty((x.shape[0], w2.shape[0]))


def _say_calls() -> None:
    if calls:
        counted = ", ".join(f"{count} by {by}" for by, count in sorted(calls.items()))
        log.info("tuner: MLPs and layers that ran or were captured: %s", counted)


atexit.register(_say_calls)
_library = torch.library.Library("tuner_vllm", "DEF")
_library.define(
    "mlp(Tensor x, Tensor w1, Tensor w2, str activation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_library.impl("mlp", _run, "CPU")
_library.impl("mlp", _run, "CUDA")
torch.library.register_fake("tuner_vllm::mlp", _fake, lib=_library)
