"""The launches of a scheme's peers for a row."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch

from . import activations, quantised
from .peer import Inputs, Makers, Peer
from .quantised import Scaled
from .scaled_gemm import Mode, Operands, ScaledGemm


def tensor_peers(inputs: Inputs) -> Makers:
    """Peers with one static factor per tensor, including H."""
    return {"cublaslt": partial(_pair_by_cublaslt, inputs, Mode.TENSOR)}


def token_peers(inputs: Inputs) -> Makers:
    """Peers with a factor per row of activations and per channel of weights, applied by the product or after it."""
    return {"cublaslt": partial(_pair_by_cublaslt, inputs, Mode.ROW), "cublaslt deferred": partial(_deferred, inputs)}


def block_peers(inputs: Inputs) -> Makers:
    """Peers with a factor per 1 x 128 activations and per 128 x 128 weights."""
    found: Makers = {"cublaslt": partial(_pair_by_cublaslt, inputs, Mode.BLOCK)}
    if importlib.util.find_spec("vllm") or importlib.util.find_spec("deep_gemm"):
        from .deepgemm_side import deepgemm

        found["deepgemm"] = partial(deepgemm, inputs)
    return found


def weight_only_peers(inputs: Inputs) -> Makers:
    """Peers with 16-bit activations."""
    found: Makers = {}
    if importlib.util.find_spec("humming"):
        from .humming_side import humming_peers

        found |= humming_peers(inputs)
    if importlib.util.find_spec("vllm"):
        from .vllm_side import vllm_peers

        found |= vllm_peers(inputs)
    return found


PEERS_OF: dict[str, Callable[[Inputs], Makers]] = {
    "tensor": tensor_peers,
    "token": token_peers,
    "token_groups": lambda _: {},
    "block": block_peers,
    "w8a16": weight_only_peers,
    "w8a16_block": lambda _: {},
    "w4a8": lambda _: {},
    "int4": weight_only_peers,
    "mxfp4": weight_only_peers,
}


def _pair_by_cublaslt(inputs: Inputs, mode: Mode) -> Peer:
    """A product, one kernel for activation and quantisation, and a product."""
    m, room = inputs.m, inputs.room()
    of_weights = {Mode.TENSOR: quantised.by_tensor, Mode.ROW: quantised.by_row, Mode.BLOCK: quantised.by_block}[mode]
    x = quantised.by_group(inputs.x, room) if mode is Mode.BLOCK else of_weights(inputs.x)
    groups = inputs.row.pair.hidden // quantised.BLOCK
    scales = {Mode.TENSOR: (1,), Mode.ROW: (m,), Mode.BLOCK: (groups, room)}[mode]
    h = Scaled(values=inputs.hidden, scales=torch.ones(scales, device="cuda"))
    if mode is Mode.TENSOR:
        h.scales.copy_(inputs.hidden_scale)

    def activate() -> None:
        if mode is Mode.TENSOR:
            activations.by_tensor(inputs.sums, h.values, h.scales)
        elif mode is Mode.ROW:
            activations.by_token(inputs.sums, h.values, h.scales)
        else:
            activations.by_group(inputs.sums, h.values, h.scales)

    out = inputs.empty(inputs.row.pair.d)
    first = [Operands(a=x, w=of_weights(one.up), y=inputs.sums) for one in inputs.weights]
    second = [Operands(a=h, w=of_weights(one.down), y=out) for one in inputs.weights]
    return _three_kernels(inputs, mode, first, second, activate=lambda _: activate(), result=lambda: out)


def _deferred(inputs: Inputs) -> Peer:
    """Products without factors; the kernel in between applies the first one's factors. The second product's factors
    belong to a model's next op, and are not timed."""
    one = torch.ones(1, device="cuda")
    x, scales = quantised.by_row(inputs.x), torch.ones(inputs.m, device="cuda")
    up, down = (
        [quantised.by_row(w) for w in some] for some in zip(*((w.up, w.down) for w in inputs.weights), strict=True)
    )
    out = inputs.empty(inputs.row.pair.d)

    def unscaled(values: torch.Tensor) -> Scaled:
        return Scaled(values=values, scales=one)

    first = [Operands(a=unscaled(x.values), w=unscaled(w.values), y=inputs.sums) for w in up]
    second = [Operands(a=unscaled(inputs.hidden), w=unscaled(w.values), y=out) for w in down]

    def activate(number: int) -> None:
        activations.by_token(inputs.sums, inputs.hidden, scales, (x.scales, up[number].scales))

    def result() -> torch.Tensor:
        return out.float() * scales[:, None] * down[0].scales

    return _three_kernels(inputs, Mode.TENSOR, first, second, activate=activate, result=result)


def _three_kernels(
    inputs: Inputs,
    mode: Mode,
    first: list[Operands],
    second: list[Operands],
    *,
    activate: Callable[[int], object],
    result: Callable[[], torch.Tensor],
) -> Peer:
    up, down = (ScaledGemm(inputs.lt, mode, operands) for operands in (first, second))

    def launch(number: int) -> None:
        up.launch(number)
        activate(number)
        down.launch(number)

    chosen = f"algorithms {up.algorithm} and {down.algorithm}"
    return Peer(launches=[partial(launch, i) for i in range(len(first))], result=result, chosen=chosen)
