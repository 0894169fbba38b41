"""What the host takes to launch a library, and what of it comes into its time: results/<gpu>/late_launches.json.

python -m benchmarks.trust.late_launches [--row llama3-8b/m1] [--seconds 300] [--out FILE]

Graphs that PyTorch launches (attentions, its own calls of pairs, torch.compile's chains) and cuBLASLt's, which CUDA
launches itself, are timed twice:
each sample as it comes behind the first delay (`as_it_came_us`; `num_late` began before their graph was launched), and
as jobs time it, where late ones are taken again behind a longer delay (`time_us`). First the host has nothing else to
do, then all its cores are busy. About ten seconds a row.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attention.layer_rows import ONE_JOB_ROWS
from benchmarks.chains.rows import ROWS as CHAIN_ROWS
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import ROWS as PAIR_ROWS
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.stats import median
from tuner.core.trial.torch_time import TorchCalls
from tuner.errors import InvalidInput
from tuner.workers.builder.nvrtc import compile_source
from tuner.workers.source.tools import tools_source

Json = dict[str, Any]

PAIRS = ("decode-plain/llama3-8b/m16", "decode-swiglu/llama3-8b/m16", "decode-swiglu/llama3-70b-tp8/m1")
CHAINS = ("llama3-70b-tp8-synthetic/m1", "llama3-8b/m1", "qwen2.5-7b/m1")
NUM_SAMPLES = 24
#: In front of each pair of samples, as in a round in burst.
PAUSE_S = 0.002


@dataclass(kw_only=True)
class Watched:
    """A graph, and the microseconds that each launch took the host."""

    graph: Any
    host_us: list[float] = field(default_factory=list)

    def launch(self, stream: Any) -> None:
        """Enqueues the graph."""
        begin_s = time.perf_counter()
        self.graph.launch(stream)
        self.host_us.append(1e6 * (time.perf_counter() - begin_s))


def problems() -> dict[str, Problem]:
    """By the names of their rows: pairs, chains at one row, and attentions between products, cold, in burst."""
    found = {row.name: row.problem for row in PAIR_ROWS if row.name in PAIRS}
    found |= {row.name: row.problem for row in CHAIN_ROWS if row.name in CHAINS}
    cold = Objective(l2=CacheState.COLD, regime=Regime.BURST)
    for row in ONE_JOB_ROWS:
        (part,) = row.parts
        found[row.name] = Problem(workload=part, objective=cold)
    return found


@contextmanager
def busy_cores(num_processes: int) -> Iterator[None]:
    """With as many processes that compute without an end."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_compute, daemon=True) for _ in range(num_processes)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        pass


def graphs_of(prepared: Any) -> dict[str, Any]:
    """The library's graph by what launches it, and PyTorch's: its own calls of a pair, torch.compile's of a chain."""
    if prepared.data.workload.launch_ops:
        return {"PyTorch, attention": prepared.library_graph}
    from tuner.workers.gpu.library.torch_baseline import torch_runner

    calls = TorchCalls.COMPILED if len(prepared.data.workload.ops) > 2 else TorchCalls.EAGER
    return {"CUDA": prepared.library_graph, f"PyTorch, {calls}": torch_runner(prepared.data, calls)}


def figures_of(prepared: Any, tools: Any, graph: Any) -> Json:
    """Both times of a graph in turns."""
    from tuner.workers.gpu.measuring.timing import Timer

    watched = Watched(graph=graph)
    as_it_comes, in_jobs = Timer(prepared.data, tools), Timer(prepared.data, tools)
    as_it_comes.take(graph)
    in_jobs.sample_us(graph)
    as_they_came, again = list[tuple[float, bool]](), list[float]()
    for _ in range(NUM_SAMPLES):
        time.sleep(PAUSE_S)
        as_it_comes.take(graph)  # wakes the clocks
        sample, is_late = as_it_comes.take(watched)
        as_they_came.append((sample.time_us, is_late))
        again.append(in_jobs.sample_us(graph))
    return {
        "host_us": round(median(watched.host_us), 1),
        "num_late": sum(is_late for _, is_late in as_they_came),
        "num_samples": NUM_SAMPLES,
        "as_it_came_us": round(median([time_us for time_us, _ in as_they_came]), 3),
        "time_us": round(median(again), 3),
        "chain_length": prepared.data.chain_length,
    }


def measured(problem: Problem, arch: str) -> list[Json]:
    """A row of each graph with the host idle, and with its cores busy; on the visible card."""
    import cupy

    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.problem import ProblemOnCard

    tools = cupy.cuda.function.Module()
    tools.load(compile_source(tools_source(arch), arch)[0])
    prepared = ProblemOnCard(problem, tools, open_vendor(), None)
    graphs = graphs_of(prepared)

    def rows(host: str) -> list[Json]:
        return [
            {"launched_by": name, "host": host} | figures_of(prepared, tools, graph) for name, graph in graphs.items()
        ]

    idle = rows("idle")
    with busy_cores(len(os.sched_getaffinity(0))):
        return idle + rows("busy")


def chosen(names: Sequence[str]) -> dict[str, Problem]:
    """Those of these names; where nothing is named all.

    Raises:
        InvalidInput: one is not known.
    """
    known = problems()
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput("row", f"no row is called {unknown[0]}", f"one is called {next(iter(known))}")
    return {name: known[name] for name in names} if names else known


def main() -> None:
    """Measures what the command line names, and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="by its name; default: all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/late_launches.json")
    arguments = parser.parse_args()
    watch, rows = Watch(), list[Json]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine = machine_of(bench.evaluator.environment())
        path = arguments.out or results_file(bench.evaluator.target.id, "late_launches")
        for name, problem in chosen(arguments.row).items():
            if watch.seconds > arguments.seconds:
                print(f"the time is up: {name} and those behind it are left", flush=True)
                break
            rows += [{"row": name} | row for row in measured(problem, bench.gpu.arch)]
            write_report(path, rows, machine)
            for row in rows[-4:]:
                print(row, flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
