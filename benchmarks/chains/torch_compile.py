"""What torch.compile takes for the same chains, in rounds with the library: `torch_compile_us` of chains.json.

python -m benchmarks.chains.torch_compile [--row llama3-8b/m16] [--seconds 480] [--of FILE]

Takes the rows that this commit and kernel have measured, or those of another file of the same model of card: about a
minute each, in a process of its own. Where torch.compile is ahead of the library, the row's verdict is against it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.chains.merge import merged
from benchmarks.chains.results import Results
from benchmarks.chains.rows import ROWS, ChainRow, choose_rows
from benchmarks.common.report import commit, machine_of, results_file
from benchmarks.common.workbench import BUILD_CACHE, Watch, Workbench, message_of, open_workbench
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import InvalidInput
from tuner.workers.host.supervisor import GpuSupervisor

NUM_ROUNDS = 20


def add_torch(bench: Workbench, rows: Sequence[ChainRow], results: Results, seconds: float) -> None:
    """Adds torch.compile's time to each row that was measured and has none."""
    total = Watch()
    for row in rows:
        found = results.get(row)
        if found is None or found.get("torch_compile_us") is not None:
            continue
        if total.seconds > seconds:
            print(f"the time is up: {row.name} and those behind it are left", flush=True)
            break
        figures = compiled_figures(bench, row, found["verdict_speedup"])
        results.put(row, found | figures)
        print(f"{row.name}: {figures}", flush=True)


def compiled_figures(bench: Workbench, row: ChainRow, verdict_speedup: float) -> dict[str, Any]:
    """The median time, and the verdict over the faster of both; null with the reason where there is none."""
    if not isinstance(bench.evaluator, GpuSupervisor):
        return {"torch_compile_us": None, "torch_reason": "a simulated GPU has no PyTorch"}
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            library_us, compiled_us = pool.submit(compiled, row.workload.to_json()).result()
    except Exception as error:  # whatever is wrong with it, the row needs no PyTorch
        return {"torch_compile_us": None, "torch_reason": message_of(error)}
    over_library = median(paired_ratios(compiled_us, library_us))
    return {
        "torch_compile_us": round(median(compiled_us), 3),
        "torch_over_library": round(over_library, 4),
        "torch_commit": commit(),
        "verdict_speedup": round(verdict_speedup * min(1.0, over_library), 4),
    }


def compiled(workload: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Microseconds of the library and of torch.compile in the same rounds, on the visible card."""
    import cupy

    from tuner.core.problem.workload import Workload
    from tuner.workers.builder.nvrtc import compile_source
    from tuner.workers.gpu.cublaslt import CublasLt
    from tuner.workers.gpu.measure import time_together
    from tuner.workers.gpu.problem_on_card import ProblemOnCard
    from tuner.workers.gpu.torch_baseline import torch_runner
    from tuner.workers.source.render import device_text

    asked = Workload.from_json(workload)
    problem = next(row.problem for row in ROWS if row.workload == asked)
    tools = cupy.cuda.function.Module()
    tools.load(compile_source(device_text("tools.cu"), f"sm_{cupy.cuda.Device().compute_capability}")[0])
    prepared = ProblemOnCard(problem, tools, CublasLt(), None)
    chain = torch_runner(prepared.data, is_compiled=True)
    (library_us, compiled_us), _ = time_together(prepared, [prepared.library_graph, chain], NUM_ROUNDS)
    return library_us, compiled_us


def _rows_of(file: Path, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file, each with the run that measured it.

    Raises:
        InvalidInput: they are of another model of card.
    """
    report = merged([json.loads(file.read_text())])
    if report["meta"]["gpu"] != machine["gpu"]:
        raise InvalidInput("of", f"{file.name} has rows of {report['meta']['gpu']}", f"name one of {machine['gpu']}")
    return list(report["rows"])


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="a row, a chain or m16")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--of", type=Path, help="a file with rows of other runs, each of which says its own")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/chains.json")
    arguments = parser.parse_args()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.out or results_file(bench.evaluator.target.id, "chains")
        machine = machine_of(bench.evaluator.environment())
        results = Results(path, machine, _rows_of(arguments.of, machine) if arguments.of else ())
        add_torch(bench, choose_rows(arguments.row), results, arguments.seconds)


if __name__ == "__main__":
    main()
