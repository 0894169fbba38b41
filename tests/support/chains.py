"""Chains for tests: the ops of a decoder layer between two attentions, of any size."""

from __future__ import annotations

from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.ops.gemm.op import GemmOp


def block(
    m: int,
    *,
    heads: int = 256,
    width: int = 512,
    hidden: int = 384,
    qkv: int = 320,
    dtype: Dtype = Dtype.FP16,
    eps: float = 1e-5,
    bias: bool = True,
    rotary: Rotary | None = None,
) -> Workload:
    """o_proj with a residual, norm, gate and up projection, down with a residual, norm, and the next layer's qkv."""
    ops = (
        GemmOp(name="o", m=m, n=width, k=heads, residual=True, is_output=True),
        GemmOp(
            name="gate_up",
            m=m,
            n=hidden,
            k=width,
            source="o",
            norm="o",
            eps=eps,
            activation=Activation.SILU,
            gated=True,
        ),
        GemmOp(
            name="down", m=m, n=width, k=hidden, source="gate_up", residual=True, residual_source="o", is_output=True
        ),
        GemmOp(
            name="qkv",
            m=m,
            n=rotary.num_pairs if rotary else qkv,
            k=width,
            source="down",
            norm="down",
            eps=eps,
            bias=bias,
            rotary=rotary,
        ),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=dtype)


def run_of_block(m: int, *, width: int = 512, hidden: int = 384, dtype: Dtype = Dtype.FP16) -> Workload:
    """The part of a layer between two all-reduces: the norm of an input, gate and up projection, down."""
    ops = (
        GemmOp(
            name="gate_up",
            m=m,
            n=hidden,
            k=width,
            source="r",
            norm="r",
            activation=Activation.SILU,
            gated=True,
        ),
        GemmOp(name="down", m=m, n=width, k=hidden, source="gate_up"),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=dtype)


def side_by_side(m: int, *, width: int = 512, each: int = 128, dtype: Dtype = Dtype.FP16) -> Workload:
    """One producer and three readers of its normed output: unmerged q, k and v."""
    first = GemmOp(name="o", m=m, n=width, k=256, residual=True)
    readers = tuple(GemmOp(name=name, m=m, n=each, k=width, source="o", norm="o") for name in ("q", "k", "v"))
    return Workload(kind=WorkloadKind.CHAIN, ops=(first, *readers), dtype=dtype)
