"""Measurements for evaluating the simulator: schedules of eight pairs, their times, and the bytes of some.

python3 -m benchmarks.simulator.data [--gpu auto] [--share 1] [--out build/simulator_data.jsonl] [--seconds 500]

A line of JSON per finding. Existing lines of the file are not measured again, so an interrupted run continues.
Everything takes about six minutes on an H200 with 16 cores. Every schedule's numbers are checked before it is timed;
schedules are timed in groups, each in the same rounds as the library, so that a drift of the clocks affects both.
Counters are read last, in a separate process. `--share` measures less of everything, evenly from each pair's draw: a
fit uses 30 schedules per pair.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median, stdev
from typing import Any

from pebble import ProcessPool

from benchmarks.common.program import parser_of
from benchmarks.common.report import commit, machine_of
from benchmarks.common.rows import Row
from benchmarks.common.workbench import BUILD_CACHE, Ready, Workbench, open_workbench
from benchmarks.simulator.draw import SEED, Drawn, draw, judged_rows, problem_of_row
from benchmarks.simulator.draw import Pair as JudgedPair
from tests.support.counting import count_works
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.outcome import Failed, Rejected
from tuner.core.trial.reports.inspection import CounterReport
from tuner.errors import InvalidInput, WorkerError
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work
from tuner.workers.source.tools import tools_source

#: Number of schedules in the same rounds, in addition to the library; and number of rounds.
NUM_TOGETHER, NUM_ROUNDS = 8, 9
#: Per pair: number of schedules that are timed again, in other groups, and number of schedules that are counted.
NUM_AGAIN, NUM_COUNTED = 16, 48
L2_HIT_RATE_PCT, L2_BYTES = "lts__t_sector_hit_rate.pct", "lts__t_bytes.sum"
METRICS = (DRAM_READ_BYTES, DRAM_WRITE_BYTES, L2_HIT_RATE_PCT, L2_BYTES)
#: Number of works that are counted before their results are written.
NUM_COUNTED_TOGETHER = 24
COUNT_DEADLINE_S = 100.0

LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)


class Findings:
    """The file: results, and what is still missing."""

    def __init__(self, path: Path) -> None:
        """Reads the existing lines."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._done = {_key(json.loads(line)) for line in lines if line.strip()}

    def has(self, kind: str, pair: str, schedule: Schedule) -> bool:
        """Whether the file has this finding."""
        return (kind, pair, schedule.digest) in self._done

    def add(self, kind: str, pair: str, drawn: Drawn, **figures: Any) -> None:
        """Appends a line."""
        line = {"kind": kind, "pair": pair, "digest": drawn.schedule.digest, "stratum": drawn.stratum, **figures}
        self.write(line)
        self._done.add(_key(line))

    def write(self, line: dict[str, Any]) -> None:
        """Appends any line."""
        with self._path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _key(line: dict[str, Any]) -> tuple[str, str, str]:
    return line["kind"], line.get("pair", ""), line.get("digest", "")


class Pair:
    """A pair's schedules, prepared on all cores while others are measured."""

    def __init__(self, row: JudgedPair, drawn: Sequence[Drawn], bench: Workbench) -> None:
        """Starts nothing yet."""
        self.row, self.drawn, self._bench = row, drawn, bench
        self.problem = problem_of_row(row)
        self._begun: dict[Schedule, Future[Ready]] = {}

    def begin(self, wanted: Iterable[Drawn]) -> None:
        """Proves and builds in the background."""
        for one in wanted:
            if one.schedule not in self._begun:
                self._begun[one.schedule] = self._bench.begin(self.problem, fused(one.schedule))

    def ready(self, one: Drawn) -> Ready:
        """The result of `begin`."""
        self.begin([one])
        return self._begun[one.schedule].result()


def fused(schedule: Schedule) -> Candidate:
    """The candidate of a schedule in one launch."""
    return Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)


def evenly(drawn: Sequence[Drawn], count: int) -> list[Drawn]:
    """`count` of the schedules, evenly spaced over the draw."""
    return [drawn[index * len(drawn) // count] for index in range(min(count, len(drawn)))]


class Collector:
    """One run over pairs, until the time limit."""

    def __init__(
        self,
        bench: Workbench,
        findings: Findings,
        rows: Sequence[JudgedPair],
        end_s: float,
        share: float = 1.0,
        each: int | None = None,
    ) -> None:
        """`end_s` is on the monotonic clock; `share` of each pair's schedules is measured, `each` of them at most."""
        self._bench, self._findings, self._end_s, self._share = bench, findings, end_s, share
        self._begin_s = time.monotonic()
        drawn = {row: self._shared(draw(row.workload, bench.gpu, row.name)) for row in rows}
        self._pairs = [Pair(row, of if each is None else evenly(of, each), bench) for row, of in drawn.items()]

    def _shared(self, drawn: Sequence[Drawn], count: int | None = None) -> list[Drawn]:
        """This run's share of `count` schedules, or of all, evenly spaced."""
        return evenly(drawn, math.ceil(self._share * (len(drawn) if count is None else count)))

    def time(self) -> bool:
        """Times each missing schedule once; returns whether all are now there."""
        self._begin()
        for pair in self._pairs:
            self._time("time", pair, pair.drawn)
        return time.monotonic() < self._end_s

    def _begin(self) -> None:
        for pair in self._pairs:
            pair.begin(one for one in pair.drawn if not self._findings.has("time", pair.row.name, one.schedule))

    def run(self) -> bool:
        """Measures what is missing; returns whether everything is now there."""
        self._begin()
        for pair in self._pairs:
            self._time("time", pair, pair.drawn)
            self._time("again", pair, self._shared(pair.drawn, NUM_AGAIN))
        with self._counting() as count:
            for pair in self._pairs:
                self._count(pair, self._shared(pair.drawn, NUM_COUNTED), count)
        return time.monotonic() < self._end_s

    def _missing(self, kind: str, pair: Pair, wanted: Sequence[Drawn], size: int) -> Iterator[list[Drawn]]:
        """What is still missing, in groups, while there is time; reports progress."""
        left = [one for one in wanted if not self._findings.has(kind, pair.row.name, one.schedule)]
        for first in range(0, len(left), size):
            if time.monotonic() > self._end_s:
                return
            yield left[first : first + size]
        if left:
            elapsed_s = time.monotonic() - self._begin_s
            print(f"{elapsed_s:6.1f} s  {kind:6} {pair.row.name}: {len(left)} of {len(wanted)}", flush=True)

    def _time(self, kind: str, pair: Pair, wanted: Sequence[Drawn]) -> None:
        for group in self._missing(kind, pair, wanted, NUM_TOGETHER):
            ready = [(one, pair.ready(one)) for one in group]
            for one, refusal in ready:
                if isinstance(refusal, (Rejected, Failed)):
                    self._findings.add(kind, pair.row.name, one, reason=refusal.reason)
            good = [(one, work) for one, work in ready if not isinstance(work, (Rejected, Failed))]
            try:
                rows, reasons = self._rounds(pair, good)
            except WorkerError as error:
                print(f"          lost: {error}", flush=True)
                for one, work in good:  # each alone, so that only the faulty one gets a reason
                    self._time_alone(kind, pair, one, work)
                continue
            self._tell(kind, pair, [one for one, _ in good], rows, reasons)

    def _time_alone(self, kind: str, pair: Pair, one: Drawn, work: Ready) -> None:
        try:
            rows, reasons = self._rounds(pair, [(one, work)])
        except WorkerError as error:
            self._findings.add(kind, pair.row.name, one, reason=str(error))
            return
        self._tell(kind, pair, [one], rows, reasons)

    def _rounds(
        self, pair: Pair, good: Sequence[tuple[Drawn, Ready]]
    ) -> tuple[Sequence[tuple[float, ...] | None], Sequence[str]]:
        """[library, schedules], [round] microseconds, and what was wrong with each.

        Raises:
            WorkerError: a schedule ended the process.
        """
        if isinstance(self._bench.evaluator, GpuSupervisor):
            works = tuple(ready.work for _, ready in good if isinstance(ready, PreparedKernel))
            answer = self._bench.evaluator.time_together(pair.problem, (_LIBRARY_WORK, *works), NUM_ROUNDS)
            return answer.times_us, answer.reasons
        candidates = (LIBRARY, *(fused(one.schedule) for one, _ in good))
        finals = self._bench.evaluator.finals(pair.problem, candidates, num_rounds=NUM_ROUNDS)
        return finals.times_us, finals.reasons

    def _tell(
        self,
        kind: str,
        pair: Pair,
        timed: Sequence[Drawn],
        rows: Sequence[tuple[float, ...] | None],
        reasons: Sequence[str],
    ) -> None:
        library, *others = rows
        for one, row, reason in zip(timed, others, reasons[1:], strict=True):
            if not row or not library:
                self._findings.add(kind, pair.row.name, one, reason=reason or reasons[0] or "no round counts")
                continue
            ratios = [ours / theirs for ours, theirs in zip(row, library, strict=True)]
            figures: dict[str, Any] = {
                "time_us": round(median(row), 3),
                "library_us": round(median(library), 3),
                "ratio": round(median(ratios), 5),
                "spread": round(stdev(ratios) / median(ratios), 5) if len(ratios) > 1 else 0.0,
            }
            if kind == "time":
                figures["schedule"] = one.schedule.to_json()
            self._findings.add(kind, pair.row.name, one, **figures)

    @contextmanager
    def _counting(self) -> Iterator[Callable[[Pair, Sequence[Drawn]], Sequence[CounterReport]]]:
        """Yields a function that reads counters: on a card in one process, which ends afterwards; or simulated ones."""
        evaluator = self._bench.evaluator
        if not isinstance(evaluator, GpuSupervisor):
            yield lambda pair, chosen: [evaluator.count(pair.problem, fused(o.schedule), None) for o in chosen]
            return
        builder = Builder(BUILD_CACHE)
        tools = builder.build(tools_source(self._bench.gpu.arch), self._bench.gpu.arch).cubin
        builder.close()

        def count(pair: Pair, chosen: Sequence[Drawn]) -> Sequence[CounterReport]:
            works = [ready.work for one in chosen if isinstance(ready := pair.ready(one), PreparedKernel)]
            asked = pool.schedule(count_works, args=(tools, pair.problem, works, METRICS), timeout=COUNT_DEADLINE_S)
            reports = [answer.report for answer in asked.result()]
            if refused := next((report for report in reports if isinstance(report, InvalidInput)), None):
                raise refused
            return [report for report in reports if isinstance(report, CounterReport)]

        with ProcessPool(1, context=get_context("spawn")) as pool:
            yield count

    def _count(
        self, pair: Pair, wanted: Sequence[Drawn], count: Callable[[Pair, Sequence[Drawn]], Sequence[CounterReport]]
    ) -> None:
        usable = [one for one in wanted if not isinstance(pair.ready(one), (Rejected, Failed))]
        for group in self._missing("count", pair, usable, NUM_COUNTED_TOGETHER):
            try:
                reports = count(pair, group)
            except Exception as error:  # an error of the process, e.g. its deadline: the others are still counted
                print(f"          not counted: {type(error).__name__}: {error}", flush=True)
                continue
            for one, report in zip(group, reports, strict=True):
                values = {counter.name: counter.value for counter in report.counters}
                self._findings.add("count", pair.row.name, one, counters=values, reason=report.reason)


_LIBRARY_WORK = Work(plan_kind=PlanKind.LIBRARY)


def collect(bench: Workbench, path: Path, rows: Sequence[Row], seconds: float, share: float = 1.0) -> bool:
    """Measures what the file of a share lacks, for up to `seconds`; returns whether it is now complete."""
    return Collector(bench, _begun(bench, path), rows, time.monotonic() + seconds, share).run()


def collect_times(bench: Workbench, path: Path, rows: Sequence[JudgedPair], seconds: float, each: int) -> bool:
    """Same as `collect`, for times only, with `each` schedules per pair."""
    return Collector(bench, _begun(bench, path), rows, time.monotonic() + seconds, each=each).time()


def _begun(bench: Workbench, path: Path) -> Findings:
    """The file, with the origin of later lines."""
    findings = Findings(path)
    machine = machine_of(bench.evaluator.environment())
    findings.write({"kind": "meta", **machine, "commit": commit(), "seed": SEED, "rounds": NUM_ROUNDS})
    return findings


def main(arguments: Sequence[str] | None = None) -> None:
    """Collects measurements, and reports whether they are complete."""
    parser = parser_of(__doc__, "gpu", out=Path("build/simulator_data.jsonl"), seconds=500.0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the schedules of each pair")
    options = parser.parse_args(arguments)
    with open_workbench(options.gpu, BUILD_CACHE) as bench:
        is_complete = collect(bench, options.out, judged_rows(), options.seconds, options.share)
    print(f"{options.out}: {'complete' if is_complete else 'run the same command to continue'}")


if __name__ == "__main__":
    main()
