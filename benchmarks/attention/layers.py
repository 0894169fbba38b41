"""Decoder layers by jobs of the service, then as a whole compared with the library: rows of
benchmarks/results/<gpu>/layers.json.

python -m benchmarks.attention.layers [--row llama3-8b ...] [--gpu auto] [--trials 60] [--seconds 400] [--out FILE]

A part of a row is a job, with the service's searcher, finals and verdict. The library is PyTorch's best attention, the
best of cuBLASLt's algorithms, one kernel for a residual and a norm, one for an activation, and one that rotates queries
and keys and writes to the cache. A row of one part has its job's figures. For a row of several parts, the finalists of
each kind run them all in one graph, and so does the library; all are checked, then timed in turn, cold. A kind that was
not tried is null. Each job's best schedules are added to the winners, from which the next search starts.

It takes about a minute per row on an H100. Existing rows of this commit and kernel are kept. With `--merge` nothing is
measured: the rows of several files are merged into one, each with its run; if a row occurs several times, the last one
is kept.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.common import merging
from benchmarks.common.finals import best_of_kinds
from benchmarks.common.jobs import Ended, InTurn, Jobs, jobs_over
from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_merged, write_report
from benchmarks.common.winners import Winners
from benchmarks.common.workbench import BUILD_CACHE, message_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Verdict
from tuner.core.trial.stats import compare, decide, median
from tuner.dispatch.factory import make_evaluators
from tuner.errors import TunerError
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.places import places_here
from tuner.workers.builder.prepare import prepare
from tuner.workers.source.tools import tools_source

from .layer_rows import MEAN_BAR, OTHER_ROWS, ROWS, LayerRow, choose_rows, spec_of

Row = dict[str, Any]

#: Rounds for rows of several parts.
NUM_ROUNDS = 60
#: Seconds that a row of several parts takes on a card after its jobs, including builds.
ROW_S = 12.0
#: Share of an H200's data-sheet memory rate that reads attain, for the floor of its results.
_READABLE = 4.4 / 4.8


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the rows named on the command line."""
    parser = parser_of(__doc__, "row", "gpu", "trials", "rounds", "data", "out")
    parser.add_argument(
        "--seconds",
        type=float,
        default=400.0,
        help="after this many, begin no row, and no job whose row would not finish",
    )
    parser.add_argument(
        "--winners",
        type=Path,
        default=FOLDER,
        help="folder of <gpu>.json files: schedules to start with",
    )
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="of runs, into --out")
    options = parser.parse_args(arguments)
    if options.merge:
        if options.out is None:
            parser.error("--merge needs --out")
        write_merged(merged([json.loads(path.read_text()) for path in options.merge]), options.out)
        return
    watch = Watch()
    evaluators, why = make_evaluators(options.gpu, build_cache=BUILD_CACHE)
    print(why, flush=True)
    for other in evaluators[1:]:
        other.close()
    gpu, rows = evaluators[0].target.gpu, choose_rows(options.row)
    winners = ShippedWinners(options.winners)
    with jobs_over(evaluators[0], winners=winners, num_rounds=options.rounds, data=options.data) as jobs:
        machine, is_simulated = machine_of(jobs.environment), jobs.environment.simulated
        path = options.out or results_file(jobs.target_id, "layers")
        results = Results(path, machine)
        wanted = [row for row in rows if row.name not in results.rows]
        kept = Winners(winners.path(jobs.target_id))
        names = {part.digest: name for row in rows for name, part in row.named_parts.items()}

        def put(part: Workload, one: Ended) -> None:
            """Writes the rows that consist only of `part`, and its winners."""
            if not is_simulated:
                kept.put(f"layers/{names[part.digest]}", part, one)
            for row in wanted:
                if [other.digest for other in row.parts] == [part.digest]:
                    results.put(row, layer_row(row, gpu, [one], None))

        behind_s = 0.0 if is_simulated else ROW_S * sum(len(row.parts) > 1 for row in wanted)
        ended, failures = search(jobs, wanted, options.trials, options.seconds - behind_s, watch, put)
    with closing(Builder(BUILD_CACHE, num_processes=places_here())) as builder:
        for row in wanted:
            if row.name in results.rows:
                continue
            parts = [ended[part.digest] for part in row.parts if part.digest in ended]
            if len(parts) < len(row.parts) or watch.seconds > options.seconds:
                failures.append(f"{row.name}: there was no time")
                continue
            try:
                found = layer_row(row, gpu, parts, None if is_simulated else builder)
            except Exception as error:  # the later rows may succeed
                traceback.print_exc()
                failures.append(f"{row.name}: {message_of(error)}")
                continue
            results.put(row, found)
            print(row.name, json.dumps(found), f"{watch.seconds} s", flush=True)
    if failures:
        sys.exit("\n".join(["failed:", *failures]))


class Results:
    """The rows by name, including existing ones of this commit and kernel."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path, self._machine = path, machine
        self.rows = {row["row"]: row for row in rows_of_this_build(path, machine)}

    def put(self, row: LayerRow, found: Row) -> None:
        """Adds a row and writes the file."""
        self.rows[row.name] = {"row": row.name, **found}
        ordered, summary = in_order(self.rows)
        write_report(self.path, ordered, self._machine | summary)


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report, with its rows in the benchmark's order.

    Raises:
        ValueError: a row is not in the benchmark.
    """
    report = merging.merged(reports, [row.name for row in (*ROWS, *OTHER_ROWS)], itemgetter("row"))
    ordered, summary = in_order({row["row"]: row for row in report["rows"]})
    of_run = {name: value for name, value in report["meta"].items() if not name.startswith("mean_")}
    return {"meta": of_run | summary, "rows": ordered}


def in_order(rows: Mapping[str, Row]) -> tuple[list[Row], dict[str, Any]]:
    """The existing rows, with those outside the mean last, and the summary of the others."""
    of_mean = [rows[one.name] for one in ROWS if one.name in rows]
    others = [rows[one.name] for one in OTHER_ROWS if one.name in rows]
    return [*of_mean, *others], {"complete": len(of_mean) == len(ROWS), **summary_of(of_mean)}


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean over all rows, and the target."""
    product = 1.0
    for row in rows:
        product *= row["verdict_speedup"]
    return {"mean_speedup": round(product ** (1 / len(rows)), 4), "mean_bar": MEAN_BAR} if rows else {}


def search(
    jobs: Jobs,
    rows: Sequence[LayerRow],
    trials: int,
    seconds: float,
    watch: Watch,
    put: Callable[[Workload, Ended], None],
) -> tuple[dict[str, Ended], list[str]]:
    """Searches each part once, and passes it to `put`; returns the ended jobs by their workloads' digests, and the
    failures."""
    parts = list({part.digest: part for row in rows for part in row.parts}.values())
    turns = InTurn(jobs, [spec_of(part, jobs.target_id, trials) for part in parts])
    ended, failures = dict[str, Ended](), list[str]()
    for i, part in enumerate(parts):
        if watch.seconds > seconds:
            break
        try:
            ended[part.digest] = one = turns.end(i)
            put(part, one)
        except TunerError as error:
            failures.append(f"{part.describe()}: {message_of(error)}")
            continue
        kinds = {str(kind): final.time_us for kind, final in best_of_kinds(one).items()}
        print(f"job {one.job.id}, {part.describe()}: {one.best.verdict}, {kinds}, {watch.seconds} s", flush=True)
    return ended, failures


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Times of the whole layer, [kind][round], and facts about them."""

    times_us: dict[PlanKind, Sequence[float]]
    process_of_round: Sequence[int]
    rel_error: float
    about: dict[str, Any]


def layer_row(row: LayerRow, gpu: Gpu, parts: Sequence[Ended], builder: Builder | None) -> Row:
    """The figures of a row; without a `builder`, on a simulated card, those of several parts are sums.

    Raises:
        TunerError: there are no times of the library, or none of ours.
    """
    rounds = of_jobs(parts) if builder is None or len(parts) == 1 else on_card(row, gpu, parts, builder)
    times = rounds.times_us
    if PlanKind.LIBRARY not in times or len(times) == 1:
        raise TunerError(f"the library or all of our kernels failed: {rounds.about}")
    judged = of_job(parts[0]) if len(parts) == 1 else of_rounds(rounds)
    kind_us = {str(kind): round(median(times[kind]), 3) if kind in times else None for kind in PlanKind}
    floor_us = row.floor_us(_READABLE * gpu.dram_bytes_per_s)
    return {
        "model": row.model,
        "tp": row.tp,
        "runs": [str(run) for run in row.runs],
        "batch": row.batch,
        "context": row.context,
        "kind_us": kind_us,
        **judged,
        "library_us": kind_us[PlanKind.LIBRARY],
        "floor_us": round(floor_us, 2),
        "over_floor": round(min(median(us) for us in times.values()) / floor_us, 3),
        "rel_error": rounds.rel_error,
        "jobs": [f"{one.job.id}: {one.best.verdict}" for one in parts],
        "trials": [one.job.num_trials for one in parts],
        **rounds.about,
    }


def of_job(one: Ended) -> dict[str, Any]:
    """Verdict and winner of the job, with speed-up and interval."""
    winner = best_of_kinds(one)[one.best.winner]
    ci95 = winner.speedup_ci95 or (1.0, 1.0)
    return judgement(one.best.verdict, one.best.winner, winner.speedup or 1.0, ci95)


def of_rounds(rounds: Rounds) -> dict[str, Any]:
    """Same as `of_job`, from rounds."""
    times, processes = rounds.times_us, rounds.process_of_round
    decision = decide(times, processes)
    against = compare(times[decision.winner], times[PlanKind.LIBRARY], processes)
    return judgement(decision.verdict, decision.winner, against.speedup, against.ci95)


def judgement(verdict: Verdict, winner: PlanKind, speedup: float, ci95: tuple[float, float]) -> dict[str, Any]:
    """Verdict, winner, speed-up and interval as columns of a row."""
    return {
        "verdict": verdict,
        "winner": winner,
        "verdict_speedup": round(speedup, 4),
        "ci95": [round(end, 4) for end in ci95],
    }


def of_jobs(parts: Sequence[Ended]) -> Rounds:
    """Figures from the jobs' finals: sums if there are several."""
    *before, last = map(best_of_kinds, parts)
    times: dict[PlanKind, Sequence[float]] = {}
    for kind, final in last.items():
        beside = [in_front_of(kind, one) for one in before]
        if None not in beside:
            times[kind] = [sum(one.time_us or 0.0 for one in (*(one for one in beside if one), final))]
    errors = [trial.outcome.rel_error for part in parts for trial in part.trials if isinstance(trial.outcome, Measured)]
    about = {"schedules": {str(kind): str(final.candidate.schedule) for kind, final in last.items() if kind.is_ours}}
    return Rounds(times_us=times, process_of_round=[0], rel_error=max(errors, default=0.0), about=about)


def in_front_of(kind: PlanKind, finals: Mapping[PlanKind, Any]) -> Any:
    """The part before an attention of that kind: the library's, or the fastest one launched the same way; None if there
    is none."""
    alike = [
        one for own, one in finals.items() if (own.is_ours, own.is_programmatic) == (kind.is_ours, kind.is_programmatic)
    ]
    return min(alike, key=lambda one: one.time_us, default=None)


def ways_of(parts: Sequence[Ended]) -> list[tuple[Candidate, ...]]:
    """A way for each finalist of the last part: its launches, after the fastest matching launches of the other
    parts."""
    *before, last = parts
    found = []
    for final in last.best.finals:
        kind = final.candidate.plan_kind
        beside = [in_front_of(kind, best_of_kinds(one)) for one in before]
        if kind.is_ours and final.time_us is not None and None not in beside:
            found.append((*(one.candidate for one in beside), final.candidate))
    return found


def on_card(row: LayerRow, gpu: Gpu, parts: Sequence[Ended], builder: Builder) -> Rounds:
    """Checks all ways, and times them in turn, on this process's card.

    Raises:
        WrongNumbers: the library's layer is wrong.
    """
    import cupy

    from tuner.workers.gpu.session import Kernels
    from tuner.workers.gpu.tensors.check import Aborted, WrongNumbers
    from tuner.workers.source.launchable import LaunchRefused

    from .layer_on_card import LayerOnCard

    workloads = row.parts
    problems = [problem_of(workload) for workload in workloads]
    tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
    ready = prepared_of(workloads, gpu, ways_of(parts), builder)
    gc.collect()  # memory of the previous row
    cupy.get_default_memory_pool().free_all_blocks()
    layer, kernels = LayerOnCard(problems, tools), Kernels()
    rel_error, failures = layer.check_library(), dict[str, str]()
    runners: list[tuple[Any, Any]] = []
    for way in ready:
        try:
            whole, error = layer.checked(way, kernels)
        except (WrongNumbers, Aborted, LaunchRefused) as fault:
            failures[way.name] = str(fault)
            continue
        runners.append((way, whole))
        rel_error = max(rel_error, error)
    times_us, num_dropped = layer.times_us([layer.library, *(whole for _, whole in runners)], NUM_ROUNDS)
    best: dict[PlanKind, Sequence[float]] = {PlanKind.LIBRARY: times_us[0]}
    names: dict[str, str] = {}
    for (way, _), us in zip(runners, times_us[1:], strict=True):
        kind = way.works[-1].plan_kind
        if kind not in best or median(us) < median(best[kind]):
            best[kind], names[str(kind)] = us, way.name
    about = {
        "schedules": names,
        "num_rounds": len(times_us[0]),
        "num_dropped": num_dropped,
        "failures": failures,
        "library": json.loads(json.dumps(layer.library.recipe().to_json())),
    }
    kernels.unload()
    return Rounds(times_us=best, process_of_round=[0] * len(times_us[0]), rel_error=rel_error, about=about)


def problem_of(workload: Workload) -> Problem:
    """The problem of the workload's job."""
    return Problem(workload=workload, objective=spec_of(workload, "", 1).objective, seed=1)


def prepared_of(
    workloads: Sequence[Workload], gpu: Gpu, ways: Sequence[tuple[Candidate, ...]], builder: Builder
) -> list[Any]:
    """Proves and builds each way; refused ways are left out and reported."""
    from .layer_on_card import Way

    def made(way: tuple[Candidate, ...]) -> Any:
        try:
            parts = [prepare(*one, builder, {}) for one in zip(workloads, [gpu] * len(way), way, strict=True)]
        except TunerError as error:
            return str(error)
        if refusal := next((part.refusal for part in parts if part.refusal), ""):
            return refusal
        return Way(name=name_of(way), works=tuple(part.work for part in parts))

    with ThreadPoolExecutor(max(1, len(ways))) as threads:
        found = list(threads.map(made, ways))
    for refusal in (one for one in found if isinstance(one, str)):
        print(f"refused: {refusal}", flush=True)
    return [one for one in found if not isinstance(one, str)]


def name_of(way: Sequence[Candidate]) -> str:
    """The plan kind and the schedule of each part."""
    return " | ".join(f"{one.plan_kind} {one.schedule}" for one in way)


if __name__ == "__main__":
    main()
