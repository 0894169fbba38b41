"""Pairs of products: a feed-forward block, and two products that share nothing."""

from __future__ import annotations

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.ops.gemm.op import GemmOp


def ffn_pair(
    *,
    m: int,
    d_in: int,
    d_hidden: int,
    d_out: int,
    dtype: Dtype = Dtype.FP16,
    activation: Activation = Activation.IDENTITY,
    bias: bool = False,
    gated: bool = False,
    residual: bool = False,
    row_scale: bool = False,
) -> Workload:
    """Y[m, d_out] = activation(s X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R[m, d_out].

    If `gated`, W1 is [2 d_hidden, d_in] and b1 [2 d_hidden], gate first; `residual` adds R, `row_scale` is s.
    """
    up = GemmOp(name="up", m=m, n=d_hidden, k=d_in, activation=activation, bias=bias, gated=gated, row_scale=row_scale)
    down = GemmOp(name="down", m=m, n=d_out, k=d_hidden, source="up", bias=bias, residual=residual)
    return Workload(kind=WorkloadKind.FFN, ops=(up, down), dtype=dtype)


def independent_pair(
    first_mnk: tuple[int, int, int], second_mnk: tuple[int, int, int], *, dtype: Dtype = Dtype.FP16
) -> Workload:
    """Two GEMMs C = A W^T that share nothing, each given as (m, n, k)."""
    ops = tuple(
        GemmOp(name=name, m=m, n=n, k=k, source=f"x_{name}")
        for name, (m, n, k) in (("first", first_mnk), ("second", second_mnk))
    )
    return Workload(kind=WorkloadKind.INDEPENDENT, ops=ops, dtype=dtype)
