"""Measures the winners of `benchmarks.pairs.search` against every plan kind: benchmarks/results/<gpu>/pairs.json.

python -m benchmarks.pairs.finals [--suite decode-plain] [--row m16] [--rounds 10] [--missing]

A row's finals are the service's: all kinds in the same rounds, in the warm process and again in a fresh one. Rows are
written one by one. Rows of the same commit and kernel that are already there stay, so suites can be run one by one.
`--missing` skips these rows: it completes a run that was cut. All 71 rows took 476 s on an H200: 2.5 s each in burst,
17 s under sustained load.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.rows import ROWS, SUITES, Row, choose_rows
from benchmarks.common.workbench import BUILD_CACHE, Ready, Watch, Workbench, message_of, open_workbench
from benchmarks.pairs.summary import summarise
from benchmarks.pairs.winners import Winner, Winners, is_legal
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes, evaluate
from tuner.core.trial.outcome import Failed, Measured, Rejected
from tuner.core.trial.stats import compare, decide, median, paired_ratios
from tuner.errors import TunerError
from tuner.search.pool import canonical
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work

#: Rounds in each of the two processes; under sustained load every sample costs its load.
NUM_ROUNDS = {Regime.BURST: 10, Regime.SUSTAINED: 3}
#: Kinds of ours that a pair has.
OF_PAIRS = tuple(kind for kind in PlanKind if kind.is_ours and kind.is_for(2))
#: Finalists of each kind: in burst those of a job, and one more launched twice; under sustained load one less.
NUM_FINALISTS = {
    Regime.BURST: {kind: kind.num_finalists + (kind is PlanKind.TWO_LAUNCHES) for kind in OF_PAIRS},
    Regime.SUSTAINED: {kind: max(1, kind.num_finalists - 1) for kind in OF_PAIRS},
}


#: Finalists on their way.
Begun = Sequence[tuple[Candidate, Future[Ready]]]


def finalists_of(row: Row, winners: Sequence[Winner], gpu: Gpu) -> list[Candidate]:
    """The library, and the best few of each kind. A kind that launches in another way has, in front of its own winners,
    the best schedule of what it varies, unless the search found one of its own to be as fast."""
    found = [Candidate(plan_kind=PlanKind.LIBRARY)]
    for kind, count in NUM_FINALISTS[row.regime].items():
        own = [(w.time_us, w.candidate) for w in winners if w.candidate.plan_kind is kind]
        base = [(w.time_us, w.candidate) for w in winners if w.candidate.plan_kind is kind.base]
        best = [_launched_as(kind, candidate) for _, candidate in base[:1]]
        # Its own best goes first where it is ahead of what it varies: the other was not tried, or is slower.
        is_ahead = not base or (bool(own) and own[0][0] <= base[0][0])
        own_candidates = [candidate for _, candidate in own]
        ranked = [*own_candidates[:1], *best, *own_candidates] if is_ahead else [*best, *own_candidates]
        found += [one for one in dict.fromkeys(ranked) if is_legal(row, gpu, one)][:count]
    return found


def _launched_as(kind: PlanKind, candidate: Candidate) -> Candidate:
    assert candidate.schedule is not None
    return Candidate(plan_kind=kind, schedule=canonical(kind, candidate.schedule))


def judge_row(row: Row, finalists: Sequence[Candidate], times: FinalsTimes) -> dict[str, Any]:
    """The row's figures; times are medians over the rounds of both processes, ratios medians over paired rounds.

    Raises:
        TunerError: there are no times of the library, or none of a fused launch.
    """
    best: dict[PlanKind, int] = {}
    for index, times_us in enumerate(times.times_us):
        kind = finalists[index].plan_kind
        if times_us and (kind not in best or median(times_us) < median(times.times_us[best[kind]] or ())):
            best[kind] = index
    by_kind = {kind: times_us for kind, index in best.items() if (times_us := times.times_us[index])}
    if PlanKind.LIBRARY not in by_kind or not any(kind.is_fused for kind in by_kind):
        raise TunerError(
            f"no library or no fused launch came through: {[reason for reason in times.reasons if reason]}"
        )
    library_us, processes = by_kind[PlanKind.LIBRARY], times.process_of_round
    decision = decide(by_kind, processes)
    fresh = [process == 1 for process in processes]
    ratios = paired_ratios(library_us, by_kind[decision.winner])
    against = {kind: compare(by_kind[kind], library_us, processes) for kind in by_kind if kind.is_ours}
    ours = min((kind for kind in by_kind if kind.is_fused), key=lambda kind: median(by_kind[kind]))
    figures: dict[str, Any] = {
        "kind_us": {kind: round(median(times_us), 3) for kind, times_us in by_kind.items()},
        "verdict": decision.verdict,
        "winner": decision.winner,
        "verdict_speedup": round(median([r for r, is_fresh in zip(ratios, fresh, strict=True) if is_fresh]), 4),
        "tie_band": round(decision.tie_band, 4),
        "reference_us": round(row.reference_us, 2),
        "over_reference": round(min(median(by_kind[kind]) for kind in by_kind if kind.is_ours) / row.reference_us, 3),
        "schedule": str(finalists[best[ours]].schedule),
        "schedules": {kind: str(finalists[best[kind]].schedule) for kind in by_kind if kind.is_ours},
        "num_rounds": len(library_us),
        "num_dropped": times.num_dropped,
        "reasons": [reason for reason in times.reasons if reason],
    }
    for name, kind in (("fused_speedup", PlanKind.FUSED), ("fused_speedup_pdl", PlanKind.FUSED_PDL)):
        if kind in against:
            figures[name] = round(against[kind].speedup, 4)
            figures["ci95" if kind is PlanKind.FUSED else "ci95_pdl"] = [round(end, 4) for end in against[kind].ci95]
    energies = {kind: times.energy_mj[index] for kind, index in best.items()} if times.energy_mj else {}
    if measured := {kind: round(energy, 2) for kind, energy in energies.items() if energy is not None}:
        figures["energy_mj"] = measured
    return figures


def measure_row(
    bench: Workbench, row: Row, winners: Sequence[Winner], begun: Begun, num_rounds: int | None, *, torch: bool = False
) -> dict[str, Any]:
    """The finals of one row, of what was begun.

    Raises:
        TunerError: they came to no result.
    """
    watch = Watch()
    finalists, refused = [], []
    for candidate, future in begun:
        if isinstance(ready := future.result(), (Rejected, Failed)):
            refused.append(f"{candidate.plan_kind}: {ready.reason}")
        else:
            finalists.append(candidate)
    times = bench.evaluator.finals(
        row.problem,
        tuple(finalists),
        num_rounds=num_rounds or NUM_ROUNDS[row.regime],
        energy=row.regime is Regime.SUSTAINED,
    )
    figures = judge_row(row, finalists, times)
    if torch:
        figures |= _torch_figures(bench, row, num_rounds or NUM_ROUNDS[row.regime])
    figures["reasons"] += refused
    by_schedule = {str(winner.candidate.schedule): winner.rel_error for winner in winners}
    figures["rel_error"] = max((by_schedule.get(text, 0.0) for text in figures["schedules"].values()), default=0.0)
    if row.workload.kind is WorkloadKind.INDEPENDENT:
        figures |= _library_figures(bench, row)
    place = {"suite": row.suite, "pair": row.pair, "m": row.m, "regime": row.regime}
    return {**place, **figures, "wall_s": watch.seconds}


def _torch_figures(bench: Workbench, row: Row, num_rounds: int) -> dict[str, Any]:
    """PyTorch's own calls as a cross-check of the library, in rounds with it; null with the reason where there are
    none."""
    if not isinstance(bench.evaluator, GpuSupervisor):
        return {"torch_us": None, "torch_reason": "a simulated GPU has no PyTorch"}
    library = Work(plan_kind=PlanKind.LIBRARY)
    answer = bench.evaluator.time_together(row.problem, (library,), num_rounds, torch=True)
    torch_us = None if answer.torch_us is None else round(median(answer.torch_us), 3)
    return {"torch_us": torch_us, "torch_reason": answer.torch_reason}


def _library_figures(bench: Workbench, row: Row) -> dict[str, float]:
    """The library's times on one stream and on two; its own row is the better of both."""
    outcome = evaluate(bench.evaluator, row.problem, Candidate(plan_kind=PlanKind.LIBRARY))
    metrics = outcome.metrics if isinstance(outcome, Measured) else ()
    return {m.tag: round(m.value, 3) for m in metrics if m.tag.startswith("library_") and m.tag.endswith("_us")}


class Results:
    """The results file: rows by name, those of this commit and kernel that lie there already included."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self._rows = {name_of(row): row for row in rows_of_this_build(path, machine)}
        self.failures: dict[str, str] = {}

    def lacks(self, name: str) -> bool:
        """Whether there is no such row yet."""
        return name not in self._rows

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Adds or replaces a row and writes the file."""
        self._rows[name] = row
        self.failures.pop(name, None)
        self._write()

    def fail(self, name: str, reason: str) -> None:
        """Notes that a row came to nothing; a file without rows is not written."""
        self.failures[name] = reason
        if self._rows:
            self._write()

    def _write(self) -> None:
        rows = [self._rows[one.name] for one in ROWS if one.name in self._rows]
        suites = {suite: summarise(suite, rows) for suite in SUITES}
        complete = len(rows) == len(ROWS)
        meta = {**self._machine, "complete": complete, "failures": self.failures, "suites": suites}
        write_report(self._path, rows, meta)

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Of the suites that have a row."""
        rows = list(self._rows.values())
        return {suite: summarise(suite, rows) for suite in SUITES if any(row["suite"] == suite for row in rows)}


def name_of(row: dict[str, Any]) -> str:
    """As `Row.name`."""
    return f"{row['suite']}/{row['pair']}/m{row['m']}"


def measure_rows(
    bench: Workbench,
    rows: Sequence[Row],
    winners: Winners,
    results: Results,
    num_rounds: int | None = None,
    *,
    limit_s: float = math.inf,
    torch: bool = False,
) -> None:
    """The finals of each row that has winners, written as they come; one that fails is reported, and the others go on.

    After `limit_s` no row is begun. With `torch` PyTorch's own calls are timed too.
    """
    total = Watch()
    begun: dict[str, Begun] = {
        row.name: [(one, bench.begin(row.problem, one)) for one in finalists_of(row, winners.of(row), bench.gpu)]
        for row in rows
    }
    for row in rows:
        if total.seconds > limit_s:
            print(f"the time is up: {row.name} and those behind it are left", flush=True)
            return
        watch = Watch()
        try:
            if not winners.of(row):
                raise TunerError("no winners: search it first")
            figures = measure_row(bench, row, winners.of(row), begun.pop(row.name), num_rounds, torch=torch)
        except Exception as error:  # whatever it is, the other rows may come through
            results.fail(row.name, message_of(error))
            print(f"{row.name} FAILED after {watch.seconds} s: {message_of(error)}", flush=True)
            continue
        results.put(row.name, figures)
        kinds = "  ".join(f"{kind} {time_us:.2f}" for kind, time_us in figures["kind_us"].items())
        gains = f"fused {figures.get('fused_speedup')}, pdl {figures.get('fused_speedup_pdl')}"
        summary = f"{gains}, {figures['winner']} {figures['verdict_speedup']}, {figures['over_reference']} x reference"
        print(f"{row.name}: {figures['wall_s']:.1f} s; {summary}; us: {kinds}", flush=True)


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES))
    parser.add_argument("--row", action="append", default=[], help="a row, a pair or m16")
    parser.add_argument("--rounds", type=int, help="in each of the two processes; default: 10, sustained 3")
    parser.add_argument("--torch", action="store_true", help="time PyTorch's own calls too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after that")
    parser.add_argument("--missing", action="store_true", help="only rows that this commit and kernel lack")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--winners", type=Path, help="default: benchmarks/winners/<gpu>.json")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/pairs.json")
    arguments = parser.parse_args()
    watch = Watch()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        winners = Winners(arguments.winners or bench.winners_file)
        out = arguments.out or results_file(bench.evaluator.target.id, "pairs")
        results = Results(out, machine_of(bench.evaluator.environment()))
        chosen = choose_rows(arguments.suite, arguments.row)
        rows = [row for row in chosen if results.lacks(row.name) or not arguments.missing]
        measure_rows(bench, rows, winners, results, arguments.rounds, limit_s=arguments.seconds, torch=arguments.torch)
    for suite, summary in results.summaries().items():
        print(suite, json.dumps(summary))
    print(f"{watch.seconds} s in all")
    if results.failures:
        sys.exit("\n".join(["failed:", *(f"{name}: {reason}" for name, reason in results.failures.items())]))


if __name__ == "__main__":
    main()
