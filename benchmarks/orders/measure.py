"""The effect of order alone: one tiling of a pair, compiled once, in many orders: benchmarks/results/<gpu>/orders.json.

python -m benchmarks.orders.measure [--gpu auto] [--case m64] [--seconds 240]
    [--out benchmarks/results/<gpu>/orders.json]

A case is a pair at a number of rows on one engine. The fastest of a few tilings in row-major order is chosen; then all
its orderings are checked and timed in the same rounds. The fastest and the slowest were chosen by those rounds, so they
and row-major order are timed again, in separate rounds, from which their figures come. Row-major order is included
twice, which shows the noise. Hardware counters of the three come last, from a separate process.

It takes about 20 s per case under sustained load and 6 s in burst, so four minutes in all on an H200. Rows are written
one by one; those of the same commit and machine are kept, so that an interrupted run continues.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.workbench import Workbench, message_of, open_workbench
from benchmarks.orders.cases import CASES, Case, orderings_of, row_major, tilings_of
from tests.support.counting import apart, count_works
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.problem.objective import Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Failed, Rejected
from tuner.core.trial.reports.inspection import CounterReport
from tuner.core.trial.stats import compare, median, relative_spread
from tuner.errors import TunerError
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work
from tuner.workers.source.tools import tools_source

Row = dict[str, Any]

L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
METRICS = (L2_HIT_RATE, DRAM_READ_BYTES, DRAM_WRITE_BYTES)
#: The orders whose counters are read and compared.
NAMED = ("row_major", "best", "worst")
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)
#: Seconds allowed for the counters of one row, and for starting another process for them.
COUNT_S, COUNT_START_S = 3.0, 5.0
#: Seconds assumed for a case until one of its regime has been measured.
CASE_S = {Regime.BURST: 10.0, Regime.SUSTAINED: 25.0}


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Maximum number of rounds."""

    tilings: int
    orderings: int
    #: Rounds for the three orderings that are compared.
    named: int


NUM_ROUNDS = {
    Regime.BURST: Rounds(tilings=10, orderings=30, named=60),
    Regime.SUSTAINED: Rounds(tilings=3, orderings=4, named=8),
}


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Candidates timed in the same rounds."""

    #: [candidate] microseconds by round; None if it has no times, with the reason.
    times_us: list[tuple[float, ...] | None]
    reasons: list[str]
    num_dropped: int


def hold(bench: Workbench, problem: Problem, candidates: Sequence[Candidate], num_rounds: int) -> Contest:
    """Proves, builds, checks and times all candidates.

    Raises:
        TunerError: the card has stopped working.
    """
    if not isinstance(bench.evaluator, GpuSupervisor):
        times = bench.evaluator.finals(problem, tuple(candidates), num_rounds=max(1, num_rounds // 2))
        return Contest(times_us=list(times.times_us), reasons=list(times.reasons), num_dropped=times.num_dropped)
    ready = [one.result() for one in [bench.begin(problem, candidate) for candidate in candidates]]
    works = tuple(one.work for one in ready if isinstance(one, PreparedKernel))
    answer = bench.evaluator.time_together(problem, works, num_rounds)
    rows = iter(zip(answer.times_us, answer.reasons, strict=True))
    pairs = [(None, one.reason) if isinstance(one, (Rejected, Failed)) else next(rows) for one in ready]
    return Contest(
        times_us=[times_us for times_us, _ in pairs],
        reasons=[reason for _, reason in pairs],
        num_dropped=answer.num_dropped,
    )


def fused(schedule: Schedule) -> Candidate:
    """The candidate of a fused launch."""
    return Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)


def measure_case(bench: Workbench, case: Case, rounds: Rounds | None = None) -> Row:
    """Measures a row, without counters.

    Raises:
        TunerError: nothing could be compared.
    """
    watch, problem = Watch(), case.problem
    rounds = rounds or NUM_ROUNDS[problem.objective.regime]
    space = Space(case.workload, bench.gpu)
    bases = [row_major(tiling) for tiling in tilings_of(case, space)]
    tilings = _timed(bases, hold(bench, problem, [fused(base) for base in bases], rounds.tilings))
    base = min(tilings, key=lambda base: median(tilings[base]))
    orderings = orderings_of(space, base.tiling)
    contest = hold(bench, problem, [fused(one) for one in orderings], rounds.orderings)
    timed = _timed(orderings, contest)
    ranked = sorted(timed, key=lambda schedule: median(timed[schedule]))
    finalists = [LIBRARY, *(fused(one) for one in (base, base, ranked[0], ranked[-1]))]
    last = hold(bench, problem, finalists, rounds.named)
    if missing := next((reason for reason in last.reasons if reason), ""):
        raise TunerError(f"a finalist came to nothing: {missing}")
    library_us, base_us, again_us, best_us, worst_us = (times_us or () for times_us in last.times_us)
    gain, range_, noise = compare(best_us, base_us), compare(best_us, worst_us), compare(base_us, again_us)
    return {
        "pair": case.pair,
        "m": case.m,
        "engine": case.engine,
        "regime": problem.objective.regime,
        "tiling": str(base.tiling),
        "num_orderings": len(timed),
        "library_us": round(median(library_us), 3),
        **{
            name: {**_figures(schedule, times_us), "schedule": schedule.to_json()}
            for name, schedule, times_us in zip(
                NAMED, (base, ranked[0], ranked[-1]), (base_us, best_us, worst_us), strict=True
            )
        },
        "row_major_over_best": round(gain.speedup, 4),
        "row_major_over_best_ci95": [round(end, 4) for end in gain.ci95],
        "worst_over_best": round(range_.speedup, 4),
        "worst_over_best_ci95": [round(end, 4) for end in range_.ci95],
        "row_major_over_itself": round(noise.speedup, 4),
        "row_major_over_itself_ci95": [round(end, 4) for end in noise.ci95],
        "num_rounds": {"orderings": len(timed[base]), "named": len(base_us)},
        "num_dropped": {"orderings": contest.num_dropped, "named": last.num_dropped},
        "orderings": [_figures(schedule, timed[schedule]) for schedule in ranked],
        "tilings": {str(one.tiling): round(median(times_us), 3) for one, times_us in tilings.items()},
        "reasons": [f"{schedule}: {why}" for schedule, why in zip(orderings, contest.reasons, strict=True) if why],
        "wall_s": watch.seconds,
    }


def _timed(schedules: Sequence[Schedule], contest: Contest) -> dict[Schedule, tuple[float, ...]]:
    """The times of the schedules that have any.

    Raises:
        TunerError: none has.
    """
    found = {one: times_us for one, times_us in zip(schedules, contest.times_us, strict=True) if times_us}
    if not found:
        raise TunerError(f"none of {len(schedules)} schedules has a time: {next(iter(contest.reasons), '')}")
    return found


def _figures(schedule: Schedule, times_us: Sequence[float]) -> Row:
    return {
        "ordering": str(schedule.ordering),
        "us": round(median(times_us), 3),
        "spread": round(relative_spread(times_us), 5),
    }


class Results:
    """The results file: rows by the names of their cases, in the order of `CASES`."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self.rows = {name_of(row): row for row in rows_of_this_build(path, machine)}
        self.failures: dict[str, str] = {}

    def put(self, name: str, row: Row) -> None:
        """Adds or replaces a row and writes the file."""
        self.rows[name] = row
        rows = [self.rows[case.name] for case in CASES if case.name in self.rows]
        meta = {**self._machine, "complete": len(rows) == len(CASES), "failures": self.failures}
        write_report(self._path, rows, meta)


def name_of(row: Row) -> str:
    """The `Case.name` of a row."""
    return f"{row['pair']}/{row['engine']}/m{row['m']}"


def measure_cases(bench: Workbench, cases: Sequence[Case], results: Results, limit_s: float) -> None:
    """Measures a row per case, as long as there is time for one more and for the counters of all; a failed one is
    reported, and the others continue."""
    watch = Watch()
    left = [case for case in cases if case.name not in results.rows]
    for case in left:  # all tilings of all cases are built meanwhile, in this order
        for tiling in tilings_of(case, Space(case.workload, bench.gpu)):
            bench.begin(case.problem, fused(row_major(tiling)))
    longest_s = dict(CASE_S)
    for number, case in enumerate(left):
        regime = case.problem.objective.regime
        if watch.seconds + longest_s[regime] + COUNT_START_S + COUNT_S * (number + 1) > limit_s:
            print(f"{watch.seconds} s have passed: {case.name} is left for another run", flush=True)
            continue
        begun_s = watch.seconds
        try:
            row = measure_case(bench, case)
        except Exception as error:  # whatever the error is, the other cases may succeed
            results.failures[case.name] = message_of(error)
            print(f"{case.name} FAILED: {results.failures[case.name]}", flush=True)
            continue
        longest_s[regime] = max(watch.seconds - begun_s, 0.8 * longest_s[regime])
        results.put(case.name, row)
        print(
            f"{watch.seconds} s  {case.name}: {row['num_orderings']} orderings, row-major {row['row_major']['us']} us, "
            f"best {row['best']['us']} ({row['best']['ordering']}), worst {row['worst']['us']} "
            f"({row['worst']['ordering']}), library {row['library_us']}",
            flush=True,
        )


def count_rows(bench: Workbench, cases: Sequence[Case], results: Results) -> None:
    """Counts the three orderings of each row that has no counters: in one process for all, since a process that has
    counted must not measure times."""
    asked = [case for case in cases if case.name in results.rows and not _is_counted(results.rows[case.name])]
    if not asked:
        return
    candidates = [
        [fused(Schedule.from_json(results.rows[case.name][name]["schedule"])) for name in NAMED] for case in asked
    ]
    reports = counted(bench, [case.problem for case in asked], candidates, METRICS)
    for case, found in zip(asked, reports, strict=True):
        row = results.rows[case.name]
        for name, report in zip(NAMED, found, strict=True):
            counters = {counter.name: counter.value for counter in report.counters}
            row[name] |= {
                "l2_hit_rate": counters.get(L2_HIT_RATE),
                "dram_read_bytes": counters.get(DRAM_READ_BYTES),
                "dram_write_bytes": counters.get(DRAM_WRITE_BYTES),
                **({"no_counters": report.reason} if report.reason else {}),
            }
        results.put(case.name, row)


def _is_counted(row: Row) -> bool:
    return all(row[name].get("l2_hit_rate") is not None for name in NAMED)


def counted(
    bench: Workbench, problems: Sequence[Problem], candidates: Sequence[Sequence[Candidate]], metrics: tuple[str, ...]
) -> list[list[CounterReport]]:
    """[problem][candidate] reports of one cold run each; on a GPU, from a separate process.

    Raises:
        TunerError: a kernel cannot be made.
        TimeoutError: that process took too long.
    """
    if not isinstance(bench.evaluator, GpuSupervisor):
        return [
            [bench.evaluator.count(problem, one, metrics) for one in some]
            for problem, some in zip(problems, candidates, strict=True)
        ]
    works = []
    for problem, some in zip(problems, candidates, strict=True):
        ready = [one.result() for one in [bench.begin(problem, candidate) for candidate in some]]
        if refused := next((one for one in ready if isinstance(one, (Rejected, Failed))), None):
            raise TunerError(f"a kernel to be counted could not be built: {refused.reason}")
        works.append([one.work for one in ready if isinstance(one, PreparedKernel)])
    os.environ["CUDA_VISIBLE_DEVICES"] = usable_gpus()[0].uuid  # memory of the counting process
    with tempfile.TemporaryDirectory() as cache:
        builder = Builder(Path(cache))
        tools = builder.build(tools_source(bench.gpu.arch), bench.gpu.arch).cubin
        builder.close()
    found: list[list[CounterReport]] = apart(count_all, tools, list(problems), works, metrics)
    return found


def count_all(
    tools_cubin: bytes, problems: list[Problem], works: list[list[Work]], metrics: tuple[str, ...]
) -> list[list[CounterReport]]:
    """Counts all candidates of all problems, in a separate process."""
    reports = []
    for problem, some in zip(problems, works, strict=True):
        answers = count_works(tools_cubin, problem, some, metrics)
        reports.append([_report_of(answer.report) for answer in answers])
    return reports


def _report_of(report: Any) -> CounterReport:
    if isinstance(report, CounterReport):
        return report
    raise report


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the cases of the command line; exit code 1 if one failed."""
    parser = parser_of(__doc__, "gpu", "seconds", "out")
    parser.add_argument("--case", action="append", default=[], help="part of a case's name, e.g. mma or /m64")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    watch = Watch()
    with tempfile.TemporaryDirectory() as cache, open_workbench(options.gpu, Path(cache)) as bench:
        out = options.out or results_file(bench.evaluator.target.id, "orders")
        results = Results(out, machine_of(bench.evaluator.environment()))
        measure_cases(bench, cases, results, options.seconds - watch.seconds)
        count_rows(bench, cases, results)
    print(f"{len(results.rows)} of {len(CASES)} rows, {watch.seconds} s in all")
    if results.failures:
        raise SystemExit("\n".join(["failed:", *(f"{name}: {why}" for name, why in results.failures.items())]))


if __name__ == "__main__":
    main()
