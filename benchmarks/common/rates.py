"""The maximum rates at which this machine's card reads and multiplies: benchmarks/results/<gpu>/rates.json.

python -m benchmarks.common.rates [--out FILE]

Reference times are computed from these rates (`benchmarks.common.reference`). Reading: 4 GiB once, with the fastest of
some grids. Products: one large product by the library, in burst. About ten seconds.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.reference import rates_file
from benchmarks.common.report import machine_of, write_report
from benchmarks.common.workbench import BUILD_CACHE, open_workbench
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.stats import median
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.workers.host.supervisor import GpuSupervisor

#: Bytes to read: much more than any L2 holds.
READ_BYTES = 4 * 2**30
#: CTAs, and threads per CTA.
GRIDS = ((132, 1024), (264, 1024), (528, 512), (1024, 256), (4224, 256), (16896, 256))
NUM_READS, NUM_ROUNDS = 15, 10
#: Rows, columns and depth of the product.
PRODUCT = (4096, 8192, 8192)


def measured() -> list[dict[str, Any]]:
    """Both rates of the visible card, with all times."""
    import cupy

    from tuner.workers.builder.nvrtc import compile_source
    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.source.tools import tools_source

    tools = cupy.cuda.function.Module()
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    tools.load(compile_source(tools_source(arch), arch)[0])
    return [_reading(tools), _products(tools, open_vendor())]


def _reading(tools: Any) -> dict[str, Any]:
    import cupy

    buffer, sink = cupy.zeros(READ_BYTES // 4, dtype=cupy.uint32), cupy.zeros(1, dtype=cupy.uint32)
    read = tools.get_function("tuner_flush")
    grids_us = {}
    for ctas, threads in GRIDS:
        times_us = []
        for _ in range(NUM_READS):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            read((ctas,), (threads,), (buffer, cupy.int64(READ_BYTES // 16), sink))
            end.record()
            end.synchronize()
            times_us.append(1e3 * float(cupy.cuda.get_elapsed_time(begin, end)))
        grids_us[f"{ctas}x{threads}"] = round(median(times_us), 2)
    best_us = min(grids_us.values())
    return {"rate": "read_bytes_per_s", "value": 1e6 * READ_BYTES / best_us, "bytes": READ_BYTES, "grids_us": grids_us}


def _products(tools: Any, vendor: Any) -> dict[str, Any]:
    from tuner.workers.gpu.measuring.measure import time_together
    from tuner.workers.gpu.measuring.problem import ProblemOnCard

    m, n, k = PRODUCT
    workload = Workload(kind=WorkloadKind.CHAIN, ops=(GemmOp(name="product", m=m, n=n, k=k),), dtype=Dtype.FP16)
    prepared = ProblemOnCard(Problem(workload=workload, objective=Objective(), seed=1), tools, vendor, None)
    (times_us,), _ = time_together(prepared, [prepared.library_graph], NUM_ROUNDS)
    return {
        "rate": "flops_per_s",
        "value": 1e6 * workload.num_flops / median(times_us),
        "product": [m, n, k],
        "times_us": [round(time_us, 2) for time_us in times_us],
    }


def main() -> None:
    """Measures the first card of this machine."""
    arguments = parser_of(__doc__, "out").parse_args()
    with open_workbench("auto", BUILD_CACHE) as bench:
        if not isinstance(bench.evaluator, GpuSupervisor):
            raise InvalidInput("gpu", "this machine has no GPU", "run this on a machine with a GPU")
        path, machine = (
            arguments.out or rates_file(bench.evaluator.target.id),
            machine_of(bench.evaluator.environment()),
        )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = pool.submit(measured).result()
    for row in rows:
        print(row, flush=True)
    write_report(path, rows, machine)


if __name__ == "__main__":
    main()
