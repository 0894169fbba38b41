"""Compiles the spaces of tilings of pairs, or of chains, once, without a GPU: spills and warnings are errors.

python -m benchmarks.cpu.compile_space --gpu h200 [--chains] [--processes 2] [--every 1] [--each FILE] [--out FILE]

A plain pair and one with every option, for few rows, where every engine is available, and for many; with `--chains`,
the four ops of a decoder block. All tilings take hours on two cores; `--every 20` compiles every 20th. Seconds are CPU
time of one core.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, write_report
from tests.support.presets import decoder_block
from tuner.core.legal.legality import estimated_resources
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Workload, WorkloadKind
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.space import Space
from tuner.errors import BuildError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import compile_source, nvrtc_version, parse_log
from tuner.workers.source.render import kernel_version, render

#: With few rows, every engine is available; with many, every tile height.
FEW_ROWS, NUM_ROWS = 1, 512
#: Maximum seconds of a compile, on one core.
MEDIAN_LIMIT_S, LIMIT_S = 2.0, 4.0
#: Maximum seconds for a chain of four ops.
CHAIN_LIMIT_S = 6.0


def pair(m: int = NUM_ROWS) -> Workload:
    """The plain FFN pair whose space is compiled."""
    return ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU)


def full_pair(m: int = NUM_ROWS) -> Workload:
    """The same pair with a gate, biases, residuals and row scales."""
    return ffn_pair(
        m=m, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.SILU,
        bias=True, gated=True, residual=True, row_scale=True,
    )  # fmt: skip


def chains() -> list[Workload]:
    """The blocks whose spaces are compiled: one with large ops, and one rank's with small ones."""
    large = [decoder_block("llama3-8b", m=m) for m in (FEW_ROWS, 16, 64, NUM_ROWS)]
    return [*large, *(decoder_block("llama3-70b", m=m, tp=8, has_reduce=False) for m in (FEW_ROWS, 16, 64))]


def compile_one(workload: Workload, tiling: Tiling, arch: str) -> dict[str, Any]:
    """The compiler's report on one tiling."""
    begin = time.process_time()
    row: dict[str, Any] = {
        "tiling": str(tiling),
        "estimated_registers": estimated_resources(workload, tiling).registers_per_thread,
    }
    try:
        cubin, log = compile_source(render(workload, tiling), arch)
        resources = parse_log(log)
    except BuildError as error:
        return {**row, "error": str(error)[:500]}
    return {
        **row,
        "registers": resources.registers_per_thread,
        "spill_bytes": resources.spill_bytes,
        "warnings": list(resources.warnings),
        "cubin_bytes": len(cubin),
        "compile_s": round(time.process_time() - begin, 3),
    }


def summary(gpu_id: str, workload: Workload, num_tilings: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the results file."""
    built = [row for row in rows if "error" not in row]
    seconds = [row["compile_s"] for row in built]
    is_chain = workload.kind is WorkloadKind.CHAIN
    limits_s = (CHAIN_LIMIT_S, CHAIN_LIMIT_S) if is_chain else (MEDIAN_LIMIT_S, LIMIT_S)
    return {
        "gpu": gpu_id,
        "arch": CATALOGUE[gpu_id].arch,
        "kernel_version": kernel_version(),
        "nvrtc": nvrtc_version(),
        "pair": workload.describe(),
        "offered": num_tilings,
        "tilings": len(rows),
        "compiled": len(built),
        "spilled": [row["tiling"] for row in built if row["spill_bytes"]],
        "warned": [row["tiling"] for row in built if row["warnings"]],
        "refused": [row["tiling"] for row in rows if "error" in row],
        "over_the_estimate": sum(row["registers"] > row["estimated_registers"] for row in built),
        "registers_max": max(row["registers"] for row in built),
        "compile_s_median": statistics.median(seconds),
        "compile_s_max": max(seconds),
        "holds": statistics.median(seconds) <= limits_s[0] and max(seconds) <= limits_s[1],
    }


def main() -> None:
    """Compiles, prints the summary, writes it."""
    parser = parser_of(__doc__, "out")
    parser.add_argument("--gpu", default="h200", choices=sorted(CATALOGUE))
    parser.add_argument("--chains", action="store_true", help="of four ops")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="compile only every N-th tiling")
    parser.add_argument("--each", type=Path, help="also write one line per tiling to this file")
    arguments = parser.parse_args()
    gpu, name = CATALOGUE[arguments.gpu], "chains_" if arguments.chains else ""
    summaries, lines = [], list[str]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        pairs = [made(m) for made in (pair, full_pair) for m in (FEW_ROWS, NUM_ROWS)]
        for workload in chains() if arguments.chains else pairs:
            offered = Space(workload, gpu).tilings
            tilings = offered[:: arguments.every]
            rows = list(pool.map(partial(compile_one, workload, arch=gpu.arch), tilings, chunksize=8))
            summaries.append(summary(gpu.id, workload, len(offered), rows))
            lines += [json.dumps(row) + "\n" for row in rows]
    if arguments.each:
        arguments.each.write_text("".join(lines))
    out = arguments.out or Path(f"benchmarks/results/cpu/compile_space_{name}{gpu.arch}.json")
    write_report(out, summaries, NO_GPU)


if __name__ == "__main__":
    main()
