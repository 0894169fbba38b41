"""Times schedules that a file names beside each other: benchmarks/results/<gpu>/chain_variants.json.

python -m benchmarks.chains.variants FILE [--rounds 21] [--seconds 120] [--out FILE]

The file is a JSON list of objects with `row` (llama3-8b/m64), `label`, `kind` (fused_pdl) and `schedule`, as a winner
has it. Those of one row are timed in the same rounds, with the library, each after a check of its numbers; then each
is traced. A row with six schedules takes about 12 seconds on 16 cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chains.boundaries import boundaries_of
from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.common.reference import rates_of, reference_us
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.workbench import BUILD_CACHE, Ready, Watch, Workbench, open_workbench
from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.outcome import Failed, Rejected
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import IllegalSchedule, WorkerError
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work

Json = dict[str, Any]


def candidate_of(asked: Json) -> Candidate:
    """What an object of the file asks for."""
    return Candidate(plan_kind=PlanKind(asked["kind"]), schedule=Schedule.from_json(asked["schedule"]))


def measured(bench: Workbench, row: ChainRow, asked: Sequence[Json], num_rounds: int, *, traced: bool) -> list[Json]:
    """A finding for each, in their order."""
    candidates = [candidate_of(one) for one in asked]
    reasons = [_refusal(bench, row, candidate) for candidate in candidates]
    begun = {i: bench.begin(row.problem, candidates[i]) for i, reason in enumerate(reasons) if not reason}
    ready = {i: future.result() for i, future in begun.items()}
    for i, prepared in ready.items():
        reasons[i] = prepared.reason if isinstance(prepared, Rejected | Failed) else ""
    good = [i for i, reason in enumerate(reasons) if not reason]
    try:
        times_us, found = _together(bench, row, [candidates[i] for i in good], [ready[i] for i in good], num_rounds)
    except WorkerError as error:
        times_us, found = [None] * (len(good) + 1), [str(error)] * (len(good) + 1)
    library_us, of_good = times_us[0], dict(zip(good, zip(times_us[1:], found[1:], strict=True), strict=True))
    findings = []
    for i, (one, candidate) in enumerate(zip(asked, candidates, strict=True)):
        us, reason = of_good.get(i, (None, reasons[i]))
        finding = {"row": row.name, "label": one["label"], "kind": one["kind"], "schedule": str(candidate.schedule)}
        if us and library_us:
            finding |= _figures(bench, row, us, library_us)
            finding |= _traced(bench, row, candidate) if traced else {}
        else:
            finding["reason"] = reason or "no round counts"
        findings.append(finding)
    return findings


def _refusal(bench: Workbench, row: ChainRow, candidate: Candidate) -> str:
    """Why the schedule is none of this card's, or of this kind's; empty where it is."""
    assert candidate.schedule is not None
    try:
        check_kind(row.workload, bench.gpu, candidate.plan_kind, candidate.schedule)
        check_schedule(row.workload, bench.gpu, candidate.schedule)
    except IllegalSchedule as error:
        return str(error)
    return ""


def _together(
    bench: Workbench, row: ChainRow, candidates: Sequence[Candidate], ready: Sequence[Ready], num_rounds: int
) -> tuple[list[Any], list[str]]:
    """[the library and each candidate] times of the rounds, and why there are none.

    Raises:
        WorkerError: one of them took the process along.
    """
    if isinstance(bench.evaluator, GpuSupervisor):
        works = [one.work for one in ready if isinstance(one, PreparedKernel)]
        library = Work(plan_kind=PlanKind.LIBRARY)
        answer = bench.evaluator.time_together(row.problem, (library, *works), num_rounds)
        return list(answer.times_us), list(answer.reasons)
    finals = bench.evaluator.finals(row.problem, (LIBRARY, *candidates), num_rounds=num_rounds)
    return list(finals.times_us), list(finals.reasons)


def _traced(bench: Workbench, row: ChainRow, candidate: Candidate) -> Json:
    """Boundaries, or why there are none: what was timed is kept."""
    try:
        trace = bench.evaluator.trace(row.problem, candidate)
    except WorkerError as error:
        return {"trace_reason": str(error)}
    return {"trace_reason": trace.reason} if trace.reason else {"boundaries": boundaries_of(trace)}


def _figures(bench: Workbench, row: ChainRow, us: Sequence[float], library_us: Sequence[float]) -> Json:
    ordered = sorted(us)
    figures: Json = {
        "us": round(median(us), 3),
        "library_us": round(median(library_us), 3),
        "ratio": round(median(paired_ratios(us, library_us)), 5),
        "quartiles_us": [round(ordered[len(us) // 4], 3), round(ordered[-1 - len(us) // 4], 3)],
    }
    rates = rates_of(bench.evaluator.target.id)
    return figures | ({"over_floor": round(median(us) / reference_us(row.workload, rates), 3)} if rates else {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what the file asks for, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--row", action="append", default=[], help="of these rows alone")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no row is begun")
    parser.add_argument("--untraced", action="store_true", help="no traces")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    watch = Watch()
    by_row: dict[str, list[Json]] = {}
    for one in json.loads(options.asked.read_text()):
        by_row.setdefault(one["row"], []).append(one)
    with open_workbench(options.gpu, BUILD_CACHE) as bench:
        machine = machine_of(bench.evaluator.environment())
        path = options.out or results_file(bench.evaluator.target.id, "chain_variants")
        rows = rows_of_this_build(path, machine)
        for name, asked in by_row.items():
            if (options.row and name not in options.row) or watch.seconds > options.seconds:
                continue
            (row,) = choose_rows([name])
            found = measured(bench, row, asked, options.rounds, traced=not options.untraced)
            rows = [*(one for one in rows if one["row"] != name), *found]
            write_report(path, rows, machine)
            for one in found:
                print(json.dumps({key: value for key, value in one.items() if key != "boundaries"}), flush=True)
            print(f"{watch.seconds} s", flush=True)


if __name__ == "__main__":
    main()
