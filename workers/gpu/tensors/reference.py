"""What an op's output must be: a float64 product of the rounded operands, and the error that rounding may add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.core.problem.epilogue import Product, Stage
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.workload import Dtype

from ...source.library_epilogue import split_epilogue

Array = Any  # a cupy.ndarray, or a numpy.ndarray

_FP32_ROUNDOFF = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one op's output must be for one check seed."""

    #: [m, n] float64.
    values: Array
    #: [m, n] float32: the largest |output - values| that rounding can explain.
    tolerance: Array


def reference(xp: Any, op: Product, tensors: Tensors, dtype: Dtype, *, is_normed: bool = False) -> Reference:
    """The op's output and its tolerance, of NumPy's or CuPy's arrays. `is_normed` where a norm reads the output, so
    that the library may round the sums before it adds a residual.

    Sums. The bound takes the roundings as independent. The error of a sum of k products is within 12 standard
    deviations: 12 sqrt(sum (a w)^2) (u_in + sqrt(k) 2^-23). u_in is the roundoff of an intermediate operand: of an
    earlier op's output, or of rows that are normed. Each part of the epilogue changes sums and error as its file says.
    Where the vendor library needs a kernel after its GEMM, it rounds the sums z to the dtype, which adds u |z|: one
    bound serves every plan kind.

    Output. The output's own rounding, of the element type, adds 2 u |y|; the fp32 arithmetic before a residual, which
    may cancel, 1e-6 of what it is added to.

    Source: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic error bounds).
    """
    row = dtype.row
    source, w = tensors[op.source], tensors[f"{op.name}.weight"].values
    a, is_rounded = source.values, source.tolerance is not None or bool(op.norm)
    z = a @ w.T
    deviation = xp.sqrt((a.astype(xp.float32) ** 2) @ (w.astype(xp.float32) ** 2).T)
    error = 12 * deviation * ((row.roundoff if is_rounded else 0.0) + op.k**0.5 * 2 * _FP32_ROUNDOFF)
    sums = Sums(xp=xp, row=row, values=z, error=error, held=xp.abs(z))
    for stage in Stage:
        for part in op.parts:
            if part.stage is stage:
                part.apply(op, sums, tensors)
        if stage is Stage.SUMS:
            sums.compute()
            if split_epilogue(op)[1] or is_normed:
                sums.round(sums.held)
    sums.round(2 * xp.abs(sums.values))
    sums.error = sums.error + row.smallest_step
    return Reference(
        values=xp.ascontiguousarray(sums.values), tolerance=xp.ascontiguousarray(sums.error.astype(xp.float32))
    )
