"""Where our kernels' energy goes: the library and variants of ours, in turns, on this machine's first GPU.

python -m benchmarks.trust.energy [--row NAME] [--turns 3] [--out FILE]

Of a row of the pairs: the library, and two kept schedules of ours. One is the fastest with the inputs as operand A of
the tensor cores. The other is the fastest with the weights as it (`swap-ab`), where no row of a product is computed
that nobody stores. Each is launched in four plan kinds, and so is its twin, the same schedule with the other operand,
where that is legal. Each fused kept one is taken once more with polls that sleep. So what a difference costs is told by
two variants that differ in nothing else. Each is checked and timed, and its energy is taken once a turn. A row of the
file for each: `run_mj` and `power_w` are medians over the turns, and `over_library` is the median of the turns' ratios.
`l2_mb` and `dram_read_mb` are what the profiler counts in one run; where it may not, or polls sleep, they are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from tests.support.counting import apart
from tests.support.forged import with_others
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Measured
from tuner.core.trial.reports.inspection import CounterReport
from tuner.core.trial.stats import median, paired_ratios
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, try_prepare
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work
from tuner.workers.source.tools import tools_source

ROW = "decode-plain/llama3-8b/m16"
#: In which each schedule is launched.
KINDS = (PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL)
#: What is counted of a run, and what it is called in megabytes.
METRICS = {"lts__t_bytes.sum": "l2_mb", "dram__bytes_read.sum": "dram_read_mb"}
#: In the loop of a wait, and what makes its polls sleep.
_POLL, _NAP = "      return true;\n    }\n    if (polls % 16 != 0) continue;\n", "    __nanosleep(100);\n"

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is measured."""

    candidate: Candidate
    work: Work
    #: ``kept``, or ``twin`` of a kept one with the other operand; of the library, what it is called.
    origin: str
    is_sleeping: bool = False

    @property
    def words(self) -> Json:
        """What it is, as the file says it."""
        schedule = self.candidate.schedule
        return {
            "kind": str(self.candidate.plan_kind),
            "origin": self.origin,
            "operand_a": "" if schedule is None else "weights" if schedule.tiling.swap_ab else "inputs",
            "sleeping": self.is_sleeping,
            "schedule": "" if schedule is None else str(schedule),
        }


def kept_schedules(row: Row, gpu: Gpu) -> list[Schedule]:
    """The fastest kept one by which operand is A, in whatever plan kind."""
    kept = [one for one in ShippedWinners().of(gpu.id) if one.source == f"shipped {row.name}"]
    found = dict[bool, Schedule]()
    for one in sorted(kept, key=lambda one: one.time_us):
        if schedule := one.candidate.schedule:
            found.setdefault(schedule.tiling.swap_ab, schedule)
    return list(found.values())


def slept(source: str) -> str:
    """The source with a nap before each poll of a signal that came too early.

    Raises:
        ValueError: it has another loop than this knows.
    """
    before, *after = source.split(_POLL)
    if len(after) != 1:
        raise ValueError("the loop of a wait has changed: say here how its polls sleep")
    end, poll = _POLL[: _POLL.index("    if")], _POLL[_POLL.index("    if") :]
    return f"{before}{end}{_NAP}{poll}{after[0]}"


def variants_of(row: Row, gpu: Gpu, builder: Builder) -> list[Variant]:
    """The library first.

    Raises:
        ValueError: a kept schedule is refused in each kind, or its source has another loop than this knows.
    """
    found = [Variant(candidate=LIBRARY, work=Work(plan_kind=LIBRARY.plan_kind), origin="library")]
    for kept in kept_schedules(row, gpu):
        twin = kept.but(tiling=replace(kept.tiling, swap_ab=not kept.tiling.swap_ab))
        of_kept = list(_in_each_kind(row, gpu, kept, builder))
        if not of_kept:
            raise ValueError(f"no kind takes {kept}")
        found += [_variant(ready, "kept") for ready in of_kept]
        found += [_variant(ready, "twin") for ready in _in_each_kind(row, gpu, twin, builder)]
        for candidate, ready in of_kept:
            if candidate.plan_kind.is_fused:
                work = with_others(ready.work, cubin=builder.build(slept(ready.source), gpu.arch).cubin)
                found.append(Variant(candidate=candidate, work=work, origin="kept", is_sleeping=True))
    return found


def _in_each_kind(
    row: Row, gpu: Gpu, schedule: Schedule, builder: Builder
) -> Iterator[tuple[Candidate, PreparedKernel]]:
    """Made ready, in the kinds that take it."""
    for kind in KINDS:
        candidate = Candidate(plan_kind=kind, schedule=schedule)
        ready = try_prepare(row.workload, gpu, candidate, builder)
        if isinstance(ready, PreparedKernel) and not ready.refusal:
            yield candidate, ready


def _variant(ready: tuple[Candidate, PreparedKernel], origin: str) -> Variant:
    return Variant(candidate=ready[0], work=ready[1].work, origin=origin)


def measure(tools_cubin: bytes, uuid: str, problem: Problem, variants: list[Variant], num_turns: int) -> list[Json]:
    """A row for each variant, on the visible card."""
    from tuner.workers.gpu.measuring.card import CardView
    from tuner.workers.gpu.session import Session

    view = CardView(uuid)
    session = Session(tools_cubin, view)
    view.remember_own()
    outcomes = [session.evaluate(problem, variant.work).outcome for variant in variants]
    turns: list[list[Any]] = []
    for _ in range(num_turns):
        turns.append([session.energy(problem, variant.work).report for variant in variants])
        print([round(report.run_mj or 0.0, 2) for report in turns[-1]], flush=True)
    rows = []
    for i, (variant, outcome) in enumerate(zip(variants, outcomes, strict=True)):
        reports = [turn[i] for turn in turns]
        rows.append({**variant.words, **_figures(reports, turns, outcome)})
    return rows


class Counts(Protocol):
    """What counts a candidate's traffic: an `Evaluator`."""

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...]) -> CounterReport:
        """By the profiler."""
        ...


def traffic(evaluator: Counts, problem: Problem, variant: Variant) -> Json:
    """Megabytes of one run; none of a kernel that is not as the service builds it."""
    if variant.is_sleeping:
        return {}
    report = evaluator.count(problem, variant.candidate, tuple(METRICS))
    if report.reason:
        return {"no_counters": report.reason}
    values = {counter.name: counter.value for counter in report.counters}
    return {name: round(values[metric] / 1e6, 3) for metric, name in METRICS.items() if metric in values}


def _figures(reports: Sequence[Any], turns: Sequence[Sequence[Any]], outcome: Any) -> Json:
    if not isinstance(outcome, Measured):
        return {"reason": outcome.reason}
    if missing := [report.reason for report in (*reports, *(turn[0] for turn in turns)) if report.run_mj is None]:
        return {"reason": missing[0]}
    own = [report.run_mj for report in reports]
    return {
        "time_us": round(outcome.time_us, 3),
        "speedup": round(outcome.speedup, 4),
        "run_mj": round(median(own), 3),
        "power_w": round(median([report.power_w for report in reports]), 1),
        "over_library": round(median(paired_ratios(own, [turn[0].run_mj for turn in turns])), 4),
        "each_mj": [round(mj, 3) for mj in own],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the rows and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default=ROW)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    (row,) = choose_rows(names=[options.row])
    card = usable_gpus()[0]
    with TemporaryDirectory() as cache:
        with closing(GpuSupervisor(card, Path(cache))) as supervisor:
            gpu, machine = supervisor.target.gpu, machine_of(supervisor.environment())
        with closing(Builder(Path(cache), num_processes=4)) as builder:
            tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
            variants = variants_of(row, gpu, builder)
        found: list[Json] = apart(measure, tools, card.uuid, row.problem, variants, options.turns)
        with closing(GpuSupervisor(card, Path(cache))) as supervisor:
            found = [one | traffic(supervisor, row.problem, of) for one, of in zip(found, variants, strict=True)]
    write_report(options.out or results_file(gpu.id, "energy"), [{"row": row.name, **one} for one in found], machine)
    for one in found:
        print(one)
    if failed := [one for one in found if "reason" in one]:
        raise SystemExit(f"{len(failed)} variants have no figure: {failed[0]['reason']}")


if __name__ == "__main__":
    main()
