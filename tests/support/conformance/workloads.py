"""Workloads small enough to run often, and unusual enough to find faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Rows, columns and k that are not whole tiles and lines, and others that are.
RAGGED = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU)
WHOLE = ffn_pair(m=256, d_in=512, d_hidden=1024, d_out=512, activation=Activation.RELU, dtype=Dtype.BF16)
BOTH = {"ragged": RAGGED, "whole": WHOLE}
#: Few rows, for the CUDA cores.
LOW = ffn_pair(m=4, d_in=2056, d_hidden=3000, d_out=1100, activation=Activation.RELU)

#: Options of an FFN pair's ops, by name.
GATED = {"gated": True}
RESIDUAL = {"residual": True}
SCALED = {"bias": True, "row_scale": True}
EVERY_OPTION = {"gated": True, "bias": True, "residual": True, "row_scale": True}


def by_options(*options: dict[str, bool], **pair: Any) -> dict[str, Workload]:
    """An FFN pair for each set of options of its ops, by the names of the options."""
    return {"+".join(one) or "none": ffn_pair(**pair, **one) for one in options}


def by_dtype(workload: Workload) -> dict[str, Workload]:
    """The same workload in every element type."""
    return {str(dtype): replace(workload, dtype=dtype) for dtype in UNSCALED}


def by_rows(workload: Workload, *rows: int) -> dict[str, Workload]:
    """The same workload with each of these row counts."""
    return {f"m={m}": replace(workload, ops=tuple(replace(op, m=m) for op in workload.tile_ops)) for m in rows}


def chain_of_three(m: int, dims: tuple[int, int, int, int]) -> Workload:
    """A gated op, a plain one that reads it, and one with a residual that reads the plain one."""
    ops = (
        GemmOp(name="first", m=m, n=dims[1], k=dims[0], activation=Activation.SILU, gated=True),
        GemmOp(name="second", m=m, n=dims[2], k=dims[1], source="first"),
        GemmOp(name="third", m=m, n=dims[3], k=dims[2], source="second", residual=True),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def apart(one: tuple[int, int, int], other: tuple[int, int, int]) -> dict[str, Workload]:
    """Two independent ops, by name."""
    return {"apart": independent_pair(one, other)}
