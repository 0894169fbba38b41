"""Benchmarks that take samples themselves: rows measured one by one, and the graphs of a row on the visible card."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.workbench import BUILD_CACHE, Workbench, open_workbench
from tuner.core.trial.evaluator import Problem
from tuner.workers.builder.nvrtc import compile_source
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.source.tools import tools_source

Json = dict[str, Any]


def measure_on_card(
    name: str, rows: Sequence[str], out: Path | None, measured: Callable[[Workbench, Row], list[Json]], *, lack: str
) -> None:
    """Measures rows of the benchmarks, and writes the file after each: results/<gpu>/<name>.json unless `out` says
    another. All but the samples, `times_us`, is printed. `lack` says why a simulated card is refused."""
    found = list[Json]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        environment = bench.evaluator.environment()
        if environment.simulated:
            sys.exit(f"a card is needed: {lack}")
        path = out or results_file(bench.evaluator.target.id, name)
        for row in choose_rows(names=rows):
            figures = measured(bench, row)
            found += [{"row": row.name} | one for one in figures]
            write_report(path, found, machine_of(environment))
            for one in figures:
                print(row.name, {key: value for key, value in one.items() if key != "times_us"}, flush=True)
            gc.collect()


@contextmanager
def graphs_on_card(problem: Problem, arch: str, kernels: Sequence[PreparedKernel]) -> Iterator[tuple[Any, list[Any]]]:
    """The problem's timer, and its graphs: the library's, then one of each kernel, once its numbers are right.

    Raises:
        WrongNumbers: a kernel's are not.
        Overwritten: at the end, a kernel wrote where it must not.
    """
    import cupy

    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.problem import ProblemOnCard
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import check_numbers

    tools = cupy.cuda.function.Module()
    tools.load(compile_source(tools_source(arch), arch)[0])
    on_card, loaded = ProblemOnCard(problem, tools, open_vendor(), None), Kernels()
    runners = [load_runner(on_card, kernel.work, loaded) for kernel in kernels]
    for runner, kernel in zip(runners, kernels, strict=True):
        check_numbers(on_card.data, on_card.comparer, partial(on_card.run_once, runner), kernel.work)
    yield on_card.timer, [on_card.library_graph, *(on_card.timer.capture(runner) for runner in runners)]
    on_card.timer.rest()
    for runner in runners:
        on_card.check_intact(runner)
    loaded.unload()
