"""What it costs a fused chain that its instructions come from memory: benchmarks/results/<gpu>/instruction_fetch.json.

python -m benchmarks.chains.instruction_fetch [--row llama3-70b-tp8-synthetic/m16] [--repeats 7] [--out FILE]

The fastest fused, programmatic launch that ships for each row is built with its trace. Its numbers are checked. Then
its module is loaded anew a few times. Behind each load it runs twice, each time behind a read of three times the L2:
the first run finds no instruction in any cache, the second those that the SMs have kept. Of each op the tasks that are
a CTA's first of it are looked at. About 8 seconds a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Workbench, open_workbench
from tuner.core.insight.tracing import trace_from_stamps
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.inspection import TaskSpan, Trace
from tuner.core.trial.stats import median
from tuner.errors import InvalidInput, WorkerError
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare

ROW_NAMES = tuple(f"llama3-{chain}/m{m}" for chain in ("70b-tp8-synthetic", "8b") for m in (1, 16, 64))
REPEATS = 7

Json = dict[str, Any]


def candidate_of(row: ChainRow, target_id: str) -> Candidate:
    """The row's fastest fused, programmatic launch that ships.

    Raises:
        InvalidInput: there is none.
    """
    for found in ShippedWinners().of(target_id):
        if found.workload == row.workload and found.candidate.plan_kind is PlanKind.FUSED_PDL:
            return found.candidate
    raise InvalidInput("row", f"no fused launch of {row.name} ships for {target_id}", "search it first")


def first_tasks(trace: Trace) -> list[TaskSpan]:
    """Of each op and CTA the first task."""
    found = dict[tuple[int, int, int], TaskSpan]()
    for span in sorted(trace.spans, key=lambda span: span.taken_ns):
        found.setdefault((span.op, span.launch, span.cta), span)
    return list(found.values())


def figures_of(fresh: Sequence[Trace], kept: Sequence[Trace]) -> Json:
    """Microseconds from first to last stamp and of each op's first tasks: where no cache had an instruction, and where
    the SMs had kept them. Medians of tasks, then of runs."""
    figures: Json = {"fresh_us": _us([one.makespan_ns for one in fresh]), "us": _us([one.makespan_ns for one in kept])}
    figures["ops"] = [
        {"op": name} | _of_op(fresh, op, "fresh_") | _of_op(kept, op, "") for op, name in enumerate(kept[0].op_names)
    ]
    return figures


def _of_op(runs: Sequence[Trace], op: int, prefix: str) -> Json:
    own = [[span for span in first_tasks(run) if span.op == op] for run in runs]
    products = [median([float(span.computed_ns - span.loaded_ns) for span in spans]) for spans in own]
    stores = [median([float(span.stored_ns - span.computed_ns) for span in spans]) for spans in own]
    ends = [float(max(span.stored_ns for span in spans)) for spans in own]
    return {f"{prefix}compute_us": _us(products), f"{prefix}store_us": _us(stores), f"{prefix}end_us": _us(ends)}


def _us(times_ns: Sequence[float]) -> float:
    return round(median(times_ns) / 1000, 2)


def traced(row: ChainRow, prepared: PreparedKernel, arch: str, repeats: int) -> tuple[list[Trace], list[Trace]]:
    """Runs behind a load of the module, and each time the run behind that one, on the visible card.

    Raises:
        WorkerError: its numbers are wrong, or a run ended early.
    """
    import cupy

    from tuner.workers.builder.nvrtc import compile_source
    from tuner.workers.gpu.library.runners import ChainRunner, runner_of
    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.problem import ProblemOnCard
    from tuner.workers.gpu.session import Kernels
    from tuner.workers.gpu.tensors.check import Aborted, WrongNumbers, check_numbers
    from tuner.workers.source.tools import tools_source

    tools = cupy.cuda.function.Module()
    tools.load(compile_source(tools_source(arch), arch)[0])
    problem, kernels, work = ProblemOnCard(row.problem, tools, open_vendor(), None), Kernels(), prepared.work

    def run(runner: ChainRunner) -> Trace:
        problem.data.poison()
        runner.poison()
        cupy.cuda.Device().synchronize()  # the poison is on another stream
        with problem.stream:
            for plan in runner.plans:
                plan.clear_stamps()
            problem.timer.lead_in(flush=True)
            runner.enqueue(problem.data.check_ops(0), problem.stream.ptr)
        problem.stream.synchronize()
        stamps = [plan.stamps() for plan in runner.plans]
        trace = trace_from_stamps(row.problem.workload, (), prepared.plans, stamps, runner.abort_record() or "")
        if trace.reason:
            raise WorkerError(trace.reason)
        return trace

    runner = runner_of(work, kernels.load(work), traced=True)
    try:
        check_numbers(problem.data, problem.comparer, lambda ops: problem.run_once(runner, ops), work)
    except (WrongNumbers, Aborted) as error:
        raise WorkerError(str(error)) from error
    fresh, kept = list[Trace](), list[Trace]()
    for _ in range(repeats):
        kernels.unload()
        runner = runner_of(work, kernels.load(work), traced=True)
        fresh.append(run(runner))
        kept.append(run(runner))
    kernels.unload()
    return fresh, kept


def measured(bench: Workbench, builder: Builder, row: ChainRow, repeats: int) -> Json:
    """A row of the results."""
    candidate = candidate_of(row, bench.evaluator.target.id)
    prepared = prepare(row.workload, bench.gpu, candidate, builder, {}, traced=True)
    assert prepared.shared is not None
    fresh, kept = traced(row, prepared, bench.gpu.arch, repeats)
    named = {"row": row.name, "kind": str(candidate.plan_kind), "schedule": str(candidate.schedule)}
    return named | {"cubin_bytes": len(prepared.shared.built.cubin)} | figures_of(fresh, kept)


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="a row, a chain or m16")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = list[Json]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine = machine_of(bench.evaluator.environment())
        path = arguments.out or results_file(bench.evaluator.target.id, "instruction_fetch")
        builder = Builder(BUILD_CACHE)
        try:
            for row in choose_rows(arguments.row or ROW_NAMES):
                rows.append(measured(bench, builder, row, arguments.repeats))
                write_report(path, rows, machine)
                print(rows[-1], flush=True)
        finally:
            builder.close()


if __name__ == "__main__":
    main()
