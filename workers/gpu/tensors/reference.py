"""The correct output of an op: float64 sums of the rounded operands, and the error that rounding may add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tuner.core.problem.epilogue import Stage
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Role, Tensor
from tuner.core.problem.workload import Dtype
from tuner.errors import WorkerError

from ...source.library_epilogue import split_epilogue
from .row_check import check_row

Array = Any  # a cupy.ndarray, or a numpy.ndarray


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The correct output of one op for one check seed."""

    #: [m, n] float64.
    values: Array
    #: [m, n] float32: the largest |output - values| that rounding can explain.
    tolerance: Array


class TileReference(Protocol):
    """The module ``reference`` of a kind of tile op."""

    def reference(self, xp: Any, op: Any, a: Array, w: Array, *, roundoff: float, off: Array) -> Any:
        """Float64 results for a [m, columns] and w [weight rows, k], and their maximum errors. Each element of a has an
        error of at most `off`; if that is None, of `roundoff` times itself.

        An op that has `others` gets these, too, by name: elements in float64, factors and integers unchanged, each
        with its maximum error, or None. It returns both by the name of each tensor that it writes."""


def references_of(xp: Any, op: Any, tensors: Tensors, dtype: Dtype, *, is_normed: bool = False) -> dict[str, Reference]:
    """The correct value of each tensor that a tile op writes, by name, with its tolerance, as NumPy's or CuPy's arrays.
    `is_normed` if a norm reads the output, so that the library may round the sums before it adds a residual.

    Sums and their error come from the file ``reference`` of the op's kind. Elements of the source may be off by the
    roundoff of the element type if they are an earlier op's output, or normalized; an earlier op's also by its
    tolerance, which is larger if a library rounds twice. Each part of the epilogue changes sums and error as its file
    defines. If the vendor library needs a second kernel, it rounds the sums z to the type in which it stores them,
    which adds u |z|: one bound serves every plan kind. The row of the element type has the loss of tensor cores beyond
    fp32 rounding.

    Output. The rounding of the output adds 2 u |y|; the fp32 arithmetic before a residual, which may cancel, adds 1e-6
    of the value that the residual is added to.

    Raises:
        WorkerError: the kind has no reference.
    """
    if (part := part_of(op.KIND, "reference")) is None:
        raise WorkerError(f"{op.name}: there is no reference for a {op.KIND}")
    row, stored = dtype.row, op.stored_in(dtype).row
    check_row(row)
    source, w = tensors[op.source], tensors[f"{op.name}.weight"].values
    beside = op.others(dtype)
    is_rounded = source.tolerance is not None or bool(op.norm)
    # A library multiplies elements of 16 bits, so a converted weight times its factor is rounded to one.
    is_converted = op.weights is not None and op.weights.row.group > 0
    roundoff = row.sum_roundoff + is_rounded * row.roundoff + is_converted * dtype.sums.row.roundoff
    said = (
        {"others": {one.name: _known(one, tensors) for one in beside if one.role is not Role.OUTPUT}}
        if beside and not op.IS_PRODUCT
        else {}
    )
    a = source.values
    for one in op.parts:
        a, w = one.multiplied(op, tensors, xp, a, w)
    made = part.reference(xp, op, a, w, roundoff=roundoff, off=source.tolerance, **said)
    by_name = {op.name: made} if op.IS_PRODUCT else made if beside else {op.name: made}
    values, error = _pair(by_name, op.name)
    sums = Sums(xp=xp, row=dtype.sums.row, values=values, error=error, held=xp.abs(values))
    for stage in Stage:
        for one in op.parts:
            if one.stage is stage:
                one.apply(op, sums, tensors)
        if stage is Stage.SUMS:
            sums.compute()
            if split_epilogue(op)[1] or is_normed:
                sums.round(sums.held)
    for one in op.parts:
        by_name |= one.made(op, sums, tensors)
    found = {one.name: _rounded(xp, one, by_name, dtype) for one in beside if one.role in (Role.OUTPUT, Role.CACHE)}
    if stored.largest is not None:
        sums.values = xp.clip(sums.values, -stored.largest, stored.largest)
    sums.row = stored
    sums.round(2 * xp.abs(sums.values))
    sums.error = sums.error + stored.smallest_step
    return {op.name: _kept(xp, sums.values, sums.error), **found}


def _kept(xp: Any, values: Array, error: Array) -> Reference:
    return Reference(values=xp.ascontiguousarray(values), tolerance=xp.ascontiguousarray(error.astype(xp.float32)))


def _known(tensor: Tensor, tensors: Tensors) -> Any:
    known = tensors[tensor.name]
    off = None if known.tolerance is None else known.tolerance.reshape(tensor.shape)
    return known.values.reshape(tensor.shape), off


def _pair(made: Any, name: str) -> tuple[Array, Array]:
    if name not in made:
        raise WorkerError(f"the op's reference returns no value for {name}, which the op writes")
    values, error = made[name]
    return values, error


def _rounded(xp: Any, tensor: Tensor, made: Any, dtype: Dtype) -> Reference:
    """An additional output of an op, [rows, columns]: the error that its rounding adds."""
    values, error = (one.reshape(tensor.rows_and_columns) for one in _pair(made, tensor.name))
    if tensor.dtype == str(dtype):
        if dtype.row.largest is not None:
            values = xp.clip(values, -dtype.row.largest, dtype.row.largest)
        error = error + dtype.row.roundoff * 2 * xp.abs(values) + dtype.row.smallest_step
    return _kept(xp, values, error)
