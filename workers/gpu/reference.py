"""What an op's output must be: a float64 product of the rounded operands, and the error that rounding may add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy

from tuner.core.problem.workload import Activation, Dtype, GemmOp

from ..source.library_epilogue import split_epilogue

Array = Any  # a cupy.ndarray; CuPy has no type annotations

_FP32_ROUNDOFF = 2.0**-24
#: Relative error of what is computed in fp32 after the sums.
_EPILOGUE_ERROR = 1e-6


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one op's output must be for one check seed."""

    #: [m, n] float64.
    values: Array
    #: [m, n] float32: the largest |output - values| that rounding can explain.
    tolerance: Array


@dataclass(frozen=True, kw_only=True)
class Turn:
    """By what pairs are turned, and which tokens have a place in the cache."""

    #: [m, head_dim / 2] float64, rounded once to fp32: position * frequency, as every kernel has it.
    angles: Array
    #: [m] whether keys and values are kept.
    is_kept: Array


@dataclass(frozen=True, kw_only=True)
class Operands:
    """One op's operands in float64; None where the op has none."""

    #: [m, k]
    a: Array
    #: [n, k], [2n, k] where gated
    w: Array
    #: [n], [2n] where gated
    bias: Array | None
    #: [m, n]
    residual: Array | None
    #: [m], a given one or a norm's
    row_scale: Array | None
    #: [m, n]: what a residual that was computed may be off by
    residual_tolerance: Array | None = None
    #: What an op that is turned is turned by
    turn: Turn | None = None


def reference(
    op: GemmOp, operands: Operands, dtype: Dtype, *, a_is_rounded: bool, is_normed: bool = False
) -> Reference:
    """The op's output and its tolerance; `a_is_rounded` where A is an earlier op's output, rounded on its way;
    `is_normed` where a norm reads the output, so that the library may round the sums before it adds a residual.

    Sums. The bound takes the roundings as independent. The error of a sum of k products is within 12 standard
    deviations: 12 sqrt(sum (a w)^2) (u_in + sqrt(k) 2^-23). u_in is the roundoff of an intermediate operand. A row
    scale multiplies it. Where the vendor library needs a kernel after its GEMM, it rounds the sums z to the dtype,
    which adds u |z|: one bound serves every plan kind.

    Norm. The factor of a row is a function of the rounded row, and the library rounds the row again when it has scaled
    it. Either error is within one roundoff of what is scaled.

    Turned. A pair's error is that of both sums, by the cosine and the sine, and 1e-6 of them for sine and cosine.

    Output. With errors e of the sums, an activation gives what its row says. A gated output is the product of two such,
    (f + d)(z + e) - f z = d z + f e + d e with |d| that of the gate. The output's own rounding, of the element
    type, adds 2 u |y|; the fp32 arithmetic before a residual, which may cancel, 1e-6 of what it is added to.

    Source: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic error bounds).
    """
    roundoff, step = dtype.row.roundoff, dtype.row.smallest_step
    a, w = operands.a, operands.w
    z = a @ w.T
    deviation = cupy.sqrt((a.astype(cupy.float32) ** 2) @ (w.astype(cupy.float32) ** 2).T)
    error = 12 * deviation * ((roundoff if a_is_rounded else 0.0) + op.k**0.5 * 2 * _FP32_ROUNDOFF)
    if operands.row_scale is not None:
        z *= operands.row_scale[:, None]
        error *= operands.row_scale[:, None]
    if op.norm:
        error += 2 * roundoff * cupy.abs(z)
    held = cupy.abs(z)  # in 16 bits by the library, before it adds the bias ...
    if operands.bias is not None:
        z += operands.bias
        held = cupy.maximum(held, cupy.abs(z))  # ... or after
    error += _EPILOGUE_ERROR * cupy.abs(z)
    if split_epilogue(op)[1] is not None or is_normed:
        error += roundoff * held + step
    if operands.turn is not None:
        y, tolerance = _turned(z, error, op, operands.turn)
    else:
        y, tolerance = _gated(z, error, op) if op.gated else _activated(z, error, op.activation)
    if operands.residual is not None:
        tolerance += _EPILOGUE_ERROR * cupy.abs(y)
        y = y + operands.residual
    if operands.residual_tolerance is not None:
        tolerance = tolerance + operands.residual_tolerance
    tolerance = tolerance + 2 * roundoff * cupy.abs(y) + 2 * step
    return Reference(values=cupy.ascontiguousarray(y), tolerance=cupy.ascontiguousarray(tolerance.astype(cupy.float32)))


def _turned(z: Array, error: Array, op: GemmOp, turn: Turn) -> tuple[Array, Array]:
    """Queries, keys and values [m, 2n], head by head, and their error, of the sums' halves: first halves of all heads,
    then second ones. What is not kept is zero."""
    assert op.rotary is not None
    num_values, half = op.rotary.kv_heads, op.rotary.head_dim // 2
    cosines, sines = cupy.cos(turn.angles)[:, None], cupy.sin(turn.angles)[:, None]
    (x, y), (x_error, y_error) = ((part[:, : op.n], part[:, op.n :]) for part in (z, error))
    x, y, x_error, y_error = (part.reshape(op.m, -1, half) for part in (x, y, x_error, y_error))
    heads = cupy.concatenate([x * cosines - y * sines, y * cosines + x * sines], axis=-1)
    of_turn = _EPILOGUE_ERROR * (cupy.abs(x) + cupy.abs(y))
    cosines, sines = cupy.abs(cosines), cupy.abs(sines)
    errors = cupy.concatenate(
        [x_error * cosines + y_error * sines + of_turn, y_error * cosines + x_error * sines + of_turn], axis=-1
    )
    heads[:, -num_values:] = cupy.concatenate([x, y], axis=-1)[:, -num_values:]
    errors[:, -num_values:] = cupy.concatenate([x_error, y_error], axis=-1)[:, -num_values:]
    heads[:, op.rotary.heads :] *= turn.is_kept[:, None, None]
    return heads.reshape(op.m, -1), errors.reshape(op.m, -1)


def _gated(z: Array, error: Array, op: GemmOp) -> tuple[Array, Array]:
    """activation(gate) * up and its error, of the sums' halves."""
    gate, gate_error = _activated(z[:, : op.n], error[:, : op.n], op.activation)
    up, up_error = z[:, op.n :], error[:, op.n :]
    return gate * up, gate_error * cupy.abs(up) + cupy.abs(gate) * up_error + gate_error * up_error


def _activated(z: Array, error: Array, activation: Activation) -> tuple[Array, Array]:
    """An activation and its error, of the sums."""
    return activation.row.host(cupy, z), activation.row.spread(cupy, z, error)
