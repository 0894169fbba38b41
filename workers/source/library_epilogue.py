"""How the vendor library computes an op: what its GEMM's epilogue takes, and what a kernel after it must do."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.problem.workload import Activation, GemmOp


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """Some of scale, bias, activation and residual, applied in this order."""

    #: Rows of the sums are scaled.
    row_scale: bool = False
    #: The bias is added.
    bias: bool = False
    activation: Activation = Activation.IDENTITY
    #: The activated left half is multiplied by the right half.
    gated: bool = False
    #: The residual is added.
    residual: bool = False
    #: Queries and keys are turned, keys and values written to the cache.
    rotary: bool = False

    def describe(self) -> str:
        """Its steps in words, in their order."""
        steps = {
            "scale the rows": self.row_scale,
            "add the bias": self.bias,
            f"apply {self.activation}": self.activation is not Activation.IDENTITY,
            "multiply by the up projection": self.gated,
            "add the residual": self.residual,
            "turn queries and keys, write to the cache": self.rotary,
        }
        return ", ".join(step for step, is_there in steps.items() if is_there)


def split_epilogue(op: GemmOp) -> tuple[Epilogue, Epilogue | None]:
    """What the library's GEMM does of an op's epilogue, and what one elementwise kernel does after it, if anything.

    The library knows no row scale, no gate, no rotary embedding, and few activations. It adds a residual (beta = 1)
    before its activation, so fuses it only where there is none.
    """
    if op.row_scale:
        whole = Epilogue(row_scale=True, bias=op.bias, activation=op.activation, gated=op.gated, residual=op.residual)
        return Epilogue(), whole
    if op.rotary:
        return Epilogue(bias=op.bias), Epilogue(rotary=True)
    if op.gated or op.activation.row.library is None:
        rest = Epilogue(activation=op.activation, gated=op.gated, residual=op.residual)
        return Epilogue(bias=op.bias), rest
    if op.residual and op.activation is not Activation.IDENTITY:
        return Epilogue(bias=op.bias, activation=op.activation), Epilogue(residual=True)
    return Epilogue(bias=op.bias, activation=op.activation, residual=op.residual), None
