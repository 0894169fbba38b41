"""Builds of single tilings, and the pairs whose spaces they are from."""

from __future__ import annotations

import time
from typing import Any

from tuner.core.legal.legality import estimated_resources
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.tiling import Tiling
from tuner.errors import BuildError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.render import render

#: With few rows, every engine is available; with many, every tile height.
FEW_ROWS, NUM_ROWS = 1, 512
#: Maximum seconds of a compile, on one core.
MEDIAN_LIMIT_S, LIMIT_S = 2.0, 4.0


def pair(m: int = NUM_ROWS) -> Workload:
    """The plain FFN pair whose space is compiled."""
    return ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU)


def full_pair(m: int = NUM_ROWS) -> Workload:
    """The same pair with a gate, biases, residuals and row scales."""
    return ffn_pair(
        m=m, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.SILU,
        bias=True, gated=True, residual=True, row_scale=True,
    )  # fmt: skip


def compile_one(workload: Workload, tiling: Tiling, arch: str) -> dict[str, Any]:
    """The compiler's report on one tiling."""
    return compile_timed(workload, tiling, arch)[0]


def compile_timed(workload: Workload, tiling: Tiling, arch: str) -> tuple[dict[str, Any], bytes]:
    """The compiler's report on one tiling, and the cubin, which is empty if the compiler refuses the source."""
    begin = time.process_time()
    row: dict[str, Any] = {
        "tiling": str(tiling),
        "estimated_registers": estimated_resources(workload, tiling).registers_per_thread,
    }
    try:
        cubin, log = compile_source(render(workload, tiling), arch)
        resources = parse_log(log)
    except BuildError as error:
        return {**row, "error": str(error)[:500]}, b""
    return {
        **row,
        "registers": resources.registers_per_thread,
        "spill_bytes": resources.spill_bytes,
        "warnings": list(resources.warnings),
        "cubin_bytes": len(cubin),
        "compile_s": round(time.process_time() - begin, 3),
    }, cubin
