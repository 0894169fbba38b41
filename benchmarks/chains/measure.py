"""Chains in every plan kind, against the library: benchmarks/results/<gpu>/chains.json.

python -m benchmarks.chains.measure [--row llama3-8b/m16] [--missing] [--torch] [--seconds 480] [--most 60]

For each row, schedules of `benchmarks.chains.schedules` are checked and timed, the programmatic launches of each op
first. The best of each kind then meet the library in rounds, in the warm process and in a fresh one. With `--torch`,
torch.compile of the same chain is timed beside the library, in a process of its own: about a minute a row.

Rows are written one by one. Those of the same commit and kernel that are already there stay; `--missing` skips them.
After `--seconds` no row is begun.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.chains.rows import BARS, DECODE_MS, EACH_OTHER, ROWS, ChainRow, choose_rows
from benchmarks.chains.schedules import in_runs_of, schedules_of
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, Workbench, message_of, open_workbench
from tuner.core.legal.legality import check_schedule, kind_problem
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.outcome import Measured, Outcome
from tuner.core.trial.stats import decide, median, paired_ratios
from tuner.errors import IllegalSchedule, TunerError
from tuner.workers.host.supervisor import GpuSupervisor

#: Rounds in each of the two processes of the finals, and with PyTorch.
NUM_ROUNDS = 10
#: Finalists of each kind, at most, and the schedules of a kind that another way of launching is tried with.
NUM_FINALISTS, NUM_TRIED = 2, 4

Found = dict[PlanKind, list[tuple[Measured, Candidate]]]


def kinds_of(row: ChainRow, bench: Workbench) -> tuple[PlanKind, ...]:
    """Our kernel in every way: only pairs run side by side."""
    return tuple(
        kind
        for kind in PlanKind
        if kind.is_ours
        and kind.is_for(len(row.workload.ops))
        and not kind.is_side_by_side
        and (kind.is_in_runs or kind_problem(row.workload, bench.gpu, kind) is None)
    )


class RowTrials:
    """Candidates of one row, checked and timed."""

    def __init__(self, bench: Workbench, row: ChainRow) -> None:
        self._bench, self._row = bench, row
        self.found: Found = defaultdict(list)
        self.reasons: list[str] = []
        self.num_tried = 0

    def run(self, kind: PlanKind, schedules: Sequence[Schedule]) -> None:
        """Builds all of them side by side, and measures each."""
        candidates = [Candidate(plan_kind=kind, schedule=one) for one in schedules if self._is_legal(one)]
        begun = [(one, self._bench.begin(self._row.problem, one)) for one in candidates]
        for candidate, ready in begun:
            outcome = self._bench.outcome(self._row.problem, candidate, ready.result(), None)
            self._keep(kind, candidate, outcome)

    def best(self, kind: PlanKind, count: int) -> list[Candidate]:
        """The fastest of a kind."""
        return [candidate for _, candidate in self.found[kind][:count]]

    def _is_legal(self, schedule: Schedule) -> bool:
        try:
            check_schedule(self._row.workload, self._bench.gpu, schedule)
        except IllegalSchedule:
            return False
        return True

    def _keep(self, kind: PlanKind, candidate: Candidate, outcome: Outcome) -> None:
        self.num_tried += 1
        if isinstance(outcome, Measured):
            self.found[kind].append((outcome, candidate))
            self.found[kind].sort(key=lambda trial: trial[0].time_us)
        else:
            self.reasons.append(f"{kind} {candidate.schedule}: {outcome.reason}")


def try_schedules(bench: Workbench, row: ChainRow, most: int) -> RowTrials:
    """Of programmatic kinds all schedules, up to `most`; of each kind that launches plainly the best of these, and of
    both programmatic ones the best in all runs."""
    trials = RowTrials(bench, row)
    kinds = kinds_of(row, bench)
    whole = [kind for kind in kinds if kind.is_programmatic and not kind.is_in_runs]
    for kind in sorted(whole, key=lambda kind: kind.is_fused):
        trials.run(kind, schedules_of(row.workload, bench.gpu, is_fused=kind.is_fused)[:most])
    for kind in kinds:
        if kind.is_in_runs:
            best = [one.schedule for other in whole for one in trials.best(other, 1)]
            trials.run(kind, [chosen for one in best if one is not None for chosen in in_runs_of(one)])
        elif not kind.is_programmatic:
            other = next(one for one in whole if one.is_fused == kind.is_fused)
            trials.run(kind, [one.schedule for one in trials.best(other, NUM_TRIED) if one.schedule is not None])
    return trials


def measure_row(bench: Workbench, row: ChainRow, most: int, *, torch: bool) -> dict[str, Any]:
    """The row's figures.

    Raises:
        TunerError: nothing of ours was right, or the finals came to no result.
    """
    watch = Watch()
    trials = try_schedules(bench, row, most)
    finalists = [Candidate(plan_kind=PlanKind.LIBRARY)]
    for kind in trials.found:
        finalists += trials.best(kind, NUM_FINALISTS)
    if len(finalists) == 1:
        raise TunerError(f"nothing of ours was measured: {trials.reasons[:3]}")
    times = bench.evaluator.finals(row.problem, tuple(finalists), num_rounds=NUM_ROUNDS, energy=False)
    figures = judge(row, finalists, times, trials)
    figures |= compiled_figures(bench, row, figures) if torch else {"torch_compile_us": None}
    return figures | {"num_tried": trials.num_tried, "refused": trials.reasons[:5], "wall_s": watch.seconds}


def judge(row: ChainRow, finalists: Sequence[Candidate], times: FinalsTimes, trials: RowTrials) -> dict[str, Any]:
    """Times are medians over the rounds of both processes, the speed-up is that of the fresh process alone.

    Raises:
        TunerError: there are no times of the library, or none of ours.
    """
    best: dict[PlanKind, int] = {}
    for index, times_us in enumerate(times.times_us):
        kind = finalists[index].plan_kind
        if times_us and (kind not in best or median(times_us) < median(times.times_us[best[kind]] or ())):
            best[kind] = index
    by_kind = {kind: times_us for kind, index in best.items() if (times_us := times.times_us[index])}
    if PlanKind.LIBRARY not in by_kind or len(by_kind) == 1:
        raise TunerError(f"no library or none of ours came through: {[one for one in times.reasons if one]}")
    decision = decide(by_kind, times.process_of_round)
    ratios = paired_ratios(by_kind[PlanKind.LIBRARY], by_kind[decision.winner])
    fresh = [ratio for ratio, process in zip(ratios, times.process_of_round, strict=True) if process == 1]
    ours = [kind for kind in by_kind if kind.is_ours]
    errors = {str(candidate): measured.rel_error for found in trials.found.values() for measured, candidate in found}
    winner = finalists[best[decision.winner]]
    return {
        "chain": row.chain,
        "m": row.m,
        "kind_us": {
            kind: round(median(by_kind[kind]), 3) if kind in by_kind else None
            for kind in PlanKind
            if not kind.is_ours or kind.is_for(len(row.workload.ops))
        },
        "verdict": decision.verdict,
        "winner": decision.winner,
        "verdict_speedup": round(median(fresh), 4),
        "reference_us": round(row.reference_us, 2),
        "over_reference": round(min(median(by_kind[kind]) for kind in ours) / row.reference_us, 3),
        "rel_error": errors.get(str(winner)),
        "schedules": {kind: str(finalists[best[kind]].schedule) for kind in ours},
        "num_rounds": len(ratios),
        "num_dropped": times.num_dropped,
        "reasons": [one for one in times.reasons if one],
    }


def compiled_figures(bench: Workbench, row: ChainRow, figures: dict[str, Any]) -> dict[str, Any]:
    """What torch.compile takes, in rounds with the library; where it is ahead, the verdict is against it."""
    if not isinstance(bench.evaluator, GpuSupervisor):
        return {"torch_compile_us": None, "torch_reason": "a simulated GPU has no PyTorch"}
    try:
        library_us, compiled_us = apart(compiled, row.workload.to_json())
    except Exception as error:  # whatever is wrong with it, the row needs no PyTorch
        return {"torch_compile_us": None, "torch_reason": message_of(error)}
    ahead = min(1.0, median(paired_ratios(compiled_us, library_us)))
    return {
        "torch_compile_us": round(median(compiled_us), 3),
        "verdict_speedup": round(figures["verdict_speedup"] * ahead, 4),
    }


def apart(measure: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own: PyTorch keeps pools of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


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
    (library_us, compiled_us), _ = time_together(prepared, [prepared.library_graph, chain], 2 * NUM_ROUNDS)
    return library_us, compiled_us


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was reached of each chain, beside what must be."""
    found: dict[str, Any] = {}
    for chain, bars in BARS.items():
        own = {row["m"]: row for row in rows if row["chain"] == chain and "verdict_speedup" in row}
        few = [own[m]["verdict_speedup"] for m in DECODE_MS if m in own]
        others = [row["verdict_speedup"] for m, row in own.items() if m not in DECODE_MS]
        found[chain] = {
            "mean": round(math.prod(few) ** (1 / len(few)), 4) if few else None,
            "mean_bar": bars.mean,
            "least": min(few, default=None),
            "each_bar": bars.each,
            "over_reference": {m: own[m]["over_reference"] for m in bars.over_reference if m in own},
            "over_reference_bars": bars.over_reference,
            "least_of_many_rows": min(others, default=None),
            "many_rows_bar": EACH_OTHER,
        }
    return found


def measure_rows(bench: Workbench, rows: Sequence[ChainRow], path: Path, arguments: argparse.Namespace) -> list[str]:
    """Each row in turn, written as it comes; the names of those that failed, each with its reason."""
    machine, total, failures = machine_of(bench.evaluator.environment()), Watch(), list[str]()
    names = [row.name for row in ROWS]
    kept = {f"{row['chain']}/m{row['m']}": row for row in rows_of_this_build(path, machine)}
    for row in rows:
        if arguments.missing and row.name in kept:
            continue
        if total.seconds > arguments.seconds:
            print(f"the time is up: {row.name} and those behind it are left", flush=True)
            break
        try:
            kept[row.name] = measure_row(bench, row, arguments.most, torch=arguments.torch)
        except Exception as error:  # whatever it is, the other rows may come through
            failures.append(f"{row.name}: {message_of(error)}")
            print(f"{failures[-1]} FAILED", flush=True)
            continue
        said = {name: kept[row.name][name] for name in ("winner", "verdict_speedup", "over_reference", "wall_s")}
        print(row.name, json.dumps(kept[row.name]["kind_us"]), json.dumps(said), flush=True)
        ordered = [kept[name] for name in names if name in kept]
        write_report(path, ordered, machine | {"complete": len(ordered) == len(names), "chains": summary_of(ordered)})
    return failures


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="a row, a chain or m16")
    parser.add_argument("--missing", action="store_true", help="only rows that this commit and kernel lack")
    parser.add_argument("--torch", action="store_true", help="time torch.compile too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--most", type=int, default=60, help="schedules of a kind, at most")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/chains.json")
    arguments = parser.parse_args()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.out or results_file(bench.evaluator.target.id, "chains")
        if failures := measure_rows(bench, choose_rows(arguments.row), path, arguments):
            sys.exit("\n".join(["failed:", *failures]))


if __name__ == "__main__":
    main()
