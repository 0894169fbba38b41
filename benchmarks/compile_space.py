"""Compiles the whole space of tilings of a pair once, without a GPU: nothing may spill, nothing may be warned about.

python -m benchmarks.compile_space --gpu h200 [--processes 2] [--each build/tilings.jsonl] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.report import NO_GPU, write_report
from tuner.core.gpu import CATALOGUE
from tuner.core.legality import estimated_resources
from tuner.core.schedule import Tiling
from tuner.core.space import Space
from tuner.core.workload import Activation, Workload, ffn_pair
from tuner.errors import BuildError
from workers.build import compile_source, nvrtc_version, parse_log
from workers.render import kernel_version, render

#: Every tile height is offered for this many rows.
NUM_ROWS = 512


def pair() -> Workload:
    """The FFN pair whose space is compiled."""
    return ffn_pair(m=NUM_ROWS, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU)


def compile_one(tiling: Tiling, arch: str) -> dict[str, Any]:
    """What the compiler says of one tiling."""
    begin = time.perf_counter()
    row: dict[str, Any] = {
        "tiling": str(tiling),
        "estimated_registers": estimated_resources(pair(), tiling).registers_per_thread,
    }
    try:
        cubin, log = compile_source(render(pair(), tiling), arch)
        resources = parse_log(log)
    except BuildError as error:
        return {**row, "error": str(error)[:500]}
    return {
        **row,
        "registers": resources.registers_per_thread,
        "spill_bytes": resources.spill_bytes,
        "warnings": list(resources.warnings),
        "cubin_bytes": len(cubin),
        "compile_s": round(time.perf_counter() - begin, 3),
    }


def summary(gpu_id: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the results file."""
    built = [row for row in rows if "error" not in row]
    seconds = [row["compile_s"] for row in built]
    return {
        "gpu": gpu_id,
        "arch": CATALOGUE[gpu_id].arch,
        "kernel_version": kernel_version(),
        "nvrtc": nvrtc_version(),
        "pair": pair().describe(),
        "tilings": len(rows),
        "compiled": len(built),
        "spilled": [row["tiling"] for row in built if row["spill_bytes"]],
        "warned": [row["tiling"] for row in built if row["warnings"]],
        "refused": [row["tiling"] for row in rows if "error" in row],
        "over_the_estimate": sum(row["registers"] > row["estimated_registers"] for row in built),
        "registers_max": max(row["registers"] for row in built),
        "compile_s_median": statistics.median(seconds),
        "compile_s_max": max(seconds),
    }


def main() -> None:
    """Compiles, prints the summary, writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="h200", choices=sorted(CATALOGUE))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--each", type=Path, help="also write a line per tiling here")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    gpu = CATALOGUE[arguments.gpu]
    tilings = Space(pair(), gpu).tilings
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        rows = list(pool.map(compile_one, tilings, [gpu.arch] * len(tilings), chunksize=8))
    if arguments.each:
        arguments.each.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = arguments.out or Path(f"benchmarks/results/cpu/compile_space_{gpu.arch}.json")
    write_report(out, [summary(gpu.id, rows)], NO_GPU)


if __name__ == "__main__":
    main()
