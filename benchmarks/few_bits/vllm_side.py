"""Marlin's and Machete's products with weights of few bits, from vLLM's wheel, if it is installed: the fastest of
their own options for each product. Written for vLLM 0.26.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.attention.timing import captured, samples_us
from tuner.core.trial.stats import median

from . import activations, quantised
from .peer import Inputs, Makers, Peer

#: Takes x [m, k] and its options; returns y [m, n].
Multiply = Callable[[torch.Tensor, Any], torch.Tensor]

_ROUNDS = 5
_INT4_GROUP, _MXFP4_GROUP = 128, 32


@dataclass(frozen=True, kw_only=True)
class _Product:
    """One product per set of weights, and its options."""

    multiply: Sequence[Multiply]
    options: Sequence[Any]


def vllm_peers(inputs: Inputs) -> Makers:
    """Marlin for all three schemes; Machete for int4."""
    found: Makers = {"marlin": partial(_pair, inputs, _marlin)}
    if inputs.row.scheme.name == "int4":
        found["machete"] = partial(_pair, inputs, _machete)
    return found


def _pair(inputs: Inputs, product_of: Callable[[Inputs, Sequence[torch.Tensor]], _Product]) -> Peer:
    """A product, our kernel for the activation, and a product."""
    up = product_of(inputs, [one.up for one in inputs.weights])
    down = product_of(inputs, [one.down for one in inputs.weights])
    hidden = torch.randn(inputs.m, inputs.row.pair.hidden, device="cuda").to(torch.bfloat16)
    up_option, down_option = _fastest(up, inputs.x), _fastest(down, hidden)
    kept = list[torch.Tensor]()

    def launch(number: int) -> None:
        activations.plain(up.multiply[number](inputs.x, up_option), hidden)
        kept[:] = [down.multiply[number](hidden, down_option)]

    launches = [partial(launch, i) for i in range(len(inputs.weights))]
    return Peer(launches=launches, result=lambda: kept[0], chosen=f"{up_option} and {down_option}")


def _fastest(product: _Product, x: torch.Tensor) -> Any:
    """The product's fastest option among those with the same results as the first."""
    graphs = dict[str, torch.cuda.CUDAGraph]()
    expected: torch.Tensor | None = None
    for number, option in enumerate(product.options):
        launches = [partial(one, x, option) for one in product.multiply]
        try:
            y = launches[0]()
            torch.cuda.synchronize()
        except Exception:  # an option that the kernel has, but not for this shape
            continue
        expected = y if expected is None else expected
        if float((y - expected).float().norm()) <= 0.02 * float(expected.float().norm()):
            graphs[str(number)] = captured(launches)
    samples = samples_us(graphs, len(product.multiply), _ROUNDS)
    return product.options[int(min(samples, key=lambda one: median(samples[one])))]


def _marlin(inputs: Inputs, weights: Sequence[torch.Tensor]) -> _Product:
    """Marlin's options: whether parts are added in fp32, and whether with atomic additions."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils import marlin_utils as tools

    workspace = tools.marlin_make_workspace_new(torch.device("cuda"))

    n, k = weights[0].shape

    def multiply(values: torch.Tensor, scales: torch.Tensor, kind: Any, *given: Any) -> torch.Tensor:
        x, (adds_fp32, is_atomic) = given
        named = {"use_atomic_add": is_atomic, "use_fp32_reduce": adds_fp32}
        absent = (None,) * 5  # scales of x and of the whole tensor, zero points, a permutation of k
        found: torch.Tensor = ops.marlin_gemm(
            x, None, values, None, scales, *absent, workspace, kind, x.shape[0], n, k, **named
        )
        return found

    laid = [_for_marlin(inputs.row.scheme.name, w) for w in weights]
    options = [(True, False), (False, False), (False, True)]
    return _Product(multiply=[partial(multiply, *one) for one in laid], options=options)


def _for_marlin(scheme: str, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Weights and scales in Marlin's layout, and Marlin's name for the type."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils import marlin_utils as tools
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import mxfp4_marlin_process_scales
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import fp8_fused_exponent_bias_into_scales
    from vllm.scalar_type import scalar_types

    n, k = w.shape
    nobody = torch.empty(0, dtype=torch.int, device="cuda")

    def laid(words: torch.Tensor, bits: int) -> torch.Tensor:
        return ops.gptq_marlin_repack(words.t().contiguous(), nobody, k, n, bits)

    if scheme == "w8a16":
        by_row = quantised.by_row(w)
        scales = tools.marlin_permute_scales(by_row.scales.to(w.dtype)[None], k, n, -1)
        values = laid(by_row.values.view(torch.int32), 8)
        return values, fp8_fused_exponent_bias_into_scales(scales), scalar_types.float8_e4m3fn
    if scheme == "int4":
        codes = quantised.by_int4(w, _INT4_GROUP)
        scales = tools.marlin_permute_scales(codes.scales.t().contiguous(), k, n, _INT4_GROUP)
        return laid(quantised.nibbles(codes.values), 4), scales, scalar_types.uint4b8
    codes = quantised.by_mxfp4(w, _MXFP4_GROUP)
    scales = tools.marlin_permute_scales(codes.scales.to(w.dtype).t().contiguous(), k, n, _MXFP4_GROUP)
    return laid(quantised.nibbles(codes.values), 4), mxfp4_marlin_process_scales(scales), scalar_types.float4_e2m1f


def _machete(inputs: Inputs, weights: Sequence[torch.Tensor]) -> _Product:
    """Machete's options are its schedules."""
    from vllm import _custom_ops as ops
    from vllm.scalar_type import scalar_types

    kind = scalar_types.uint4b8

    def multiply(values: torch.Tensor, scales: torch.Tensor, *given: Any) -> torch.Tensor:
        x, schedule = given
        found: torch.Tensor = ops.machete_mm(x, values, kind, None, scales, None, _INT4_GROUP, schedule=schedule)
        return found

    def laid(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = quantised.by_int4(w, _INT4_GROUP)
        words = quantised.nibbles(codes.values).t()  # [k / 8, n], k by k
        packed = ops.machete_prepack_B(words, torch.bfloat16, kind, torch.bfloat16)
        return packed, codes.scales.t().contiguous()

    named = {"group_scales_type": torch.bfloat16, "group_zeros_type": None, "out_type": torch.bfloat16}
    schedules = ops.machete_supported_schedules(torch.bfloat16, kind, **named)
    return _Product(multiply=[partial(multiply, *laid(w)) for w in weights], options=[None, *schedules])
