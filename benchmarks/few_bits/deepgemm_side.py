"""DeepGEMM's block-scaled products, if DeepGEMM is installed, alone or as a part of vLLM's wheel."""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial

import torch

from . import activations, quantised
from .peer import Inputs, Peer


def deepgemm(inputs: Inputs) -> Peer:
    """The scales of activations have the layout of DeepGEMM's kernels: [m, k / 128], with rows contiguous."""
    deep_gemm = importlib.import_module(
        "vllm.third_party.deep_gemm" if importlib.util.find_spec("vllm") else "deep_gemm"
    )
    m, room, pair = inputs.m, inputs.room(), inputs.row.pair
    x = quantised.by_group(inputs.x, room)
    up, down = (
        [quantised.by_block(w) for w in some] for some in zip(*((w.up, w.down) for w in inputs.weights), strict=True)
    )
    h_scales = torch.ones(pair.hidden // quantised.BLOCK, room, device="cuda")
    out = inputs.empty(pair.d)

    def multiply(values: torch.Tensor, scales: torch.Tensor, w: quantised.Scaled, y: torch.Tensor) -> None:
        weights = (w.values, w.scales)
        deep_gemm.fp8_gemm_nt((values, scales.t()[:m]), weights, y, disable_ue8m0_cast=True)

    def launch(number: int) -> None:
        multiply(x.values, x.scales, up[number], inputs.sums)
        activations.by_group(inputs.sums, inputs.hidden, h_scales)
        multiply(inputs.hidden, h_scales, down[number], out)

    return Peer(launches=[partial(launch, i) for i in range(len(up))], result=lambda: out)
