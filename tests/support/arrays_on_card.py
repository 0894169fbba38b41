"""CuPy operands and references of FFNs, for packs on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy

from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.runtime import Weights

#: The contents of outputs before a launch: a NaN that none of our kernels writes.
UNTOUCHED = 0x7FFE


def to_bits(values: Any, dtype: Dtype) -> Any:
    """Rounds float32 to fp16 or bf16 (16 bits), to nearest even."""
    match dtype:
        case Dtype.FP16:
            return values.astype(cupy.float16).view(cupy.uint16)
        case Dtype.BF16:
            bits = values.astype(cupy.float32).view(cupy.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def from_bits(bits: Any, dtype: Dtype) -> Any:
    """The inverse of `to_bits`, in float64."""
    match dtype:
        case Dtype.FP16:
            return bits.view(cupy.float16).astype(cupy.float64)
        case Dtype.BF16:
            return (bits.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


def _activate(z: Any, activation: Activation) -> Any:
    match activation:
        case Activation.RELU:
            return cupy.maximum(z, 0)
        case Activation.GELU:
            return 0.5 * z * (1 + cupy.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))
        case Activation.SILU:
            return z / (1 + cupy.exp(-z))
        case Activation.IDENTITY:
            return z


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Random operands of a workload, in bits."""

    workload: Workload
    weights: Weights
    x: Any

    def reference(self, rows: int) -> Any:
        """Y of the first rows, in float64."""
        up, dtype = self.workload.tile_ops[0], self.workload.dtype
        z = from_bits(self.x[:rows], dtype) @ from_bits(self.weights.w1, dtype).T
        hidden = _activate(z[:, : up.n], up.activation)
        if up.gated:
            hidden = hidden * z[:, up.n :]
        return hidden @ from_bits(self.weights.w2, dtype).T

    def output(self, rows: int) -> Any:
        """An uninitialised buffer for Y with `rows` rows."""
        return cupy.full((rows, self.workload.tile_ops[1].n), UNTOUCHED, cupy.uint16)

    def rel_error(self, y: Any, rows: int) -> float:
        """||y - reference|| / ||reference||."""
        want = self.reference(rows)
        return float(cupy.linalg.norm(from_bits(y[:rows], self.workload.dtype) - want) / cupy.linalg.norm(want))


def operands(workload: Workload, seed: int = 7) -> Operands:
    """Operands of a plain or gated pair without other options."""
    up, down = workload.tile_ops
    random, dtype = cupy.random.default_rng(seed), workload.dtype

    def matrix(rows: int, columns: int, scale: float) -> Any:
        return to_bits(random.standard_normal((rows, columns), dtype=cupy.float32) * cupy.float32(scale), dtype)

    names = {Dtype.FP16: "float16", Dtype.BF16: "bfloat16"}
    weights = Weights(
        matrix(up.weight_rows, up.k, up.k**-0.5),
        matrix(down.n, down.k, down.k**-0.5),
        activation=str(up.activation),
        gated=up.gated,
        dtype=names[dtype],
    )
    return Operands(workload=workload, weights=weights, x=matrix(up.m, up.k, 1.0))
