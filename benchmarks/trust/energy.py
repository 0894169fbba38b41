"""Where our kernels' energy goes: the library and variants of ours, in turns, on this machine's first GPU.

python -m benchmarks.trust.energy [--row NAME] [--turns 3] [--out FILE]

Of a row of the pairs: the library, and the fastest kept kernel of each plan kind. Two of a kind are taken: with the
inputs as operand A of the tensor cores, and with the weights as it (`swap-ab`), where no row of a product is computed
that nobody stores. Each fused one is taken once more with polls that sleep. Each is checked and timed. Its energy is
taken once a turn. A row of the file for each: `run_mj` and `power_w` are medians over the turns, and `over_library` is
the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from tests.support.counting import apart
from tests.support.forged import with_others
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Measured
from tuner.core.trial.stats import median, paired_ratios
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work
from tuner.workers.source.render import device_text

ROW = "decode-plain/llama3-8b/m16"
#: In the loop of a wait, and what makes its polls sleep.
_POLL, _NAP = "      return true;\n    }\n    if (polls % 16 != 0) continue;\n", "    __nanosleep(100);\n"

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is measured."""

    name: str
    text: str
    work: Work


def kept_kernels(row: Row, gpu: Gpu) -> Iterator[tuple[str, Candidate]]:
    """The fastest kept ones of each kind, by which operand is A."""
    kept = [one for one in ShippedWinners().of(gpu.id) if one.source == f"shipped {row.name}"]
    seen = set[str]()
    for one in sorted(kept, key=lambda one: one.time_us):
        candidate = one.candidate
        if candidate.schedule is None:
            continue
        name = f"{candidate.plan_kind}{' swap-ab' if candidate.schedule.tiling.swap_ab else ''}"
        if name not in seen:
            seen.add(name)
            yield name, candidate


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
        ValueError: a kernel is refused, or its source has another loop than this knows.
    """
    found = [Variant(name="library", text="", work=Work(plan_kind=LIBRARY.plan_kind))]
    for name, candidate in kept_kernels(row, gpu):
        ready = prepare(row.workload, gpu, candidate, builder, {})
        if ready.refusal:
            raise ValueError(f"{name}: {ready.refusal}")
        found.append(Variant(name=name, text=str(candidate.schedule), work=ready.work))
        if candidate.plan_kind.is_fused:
            sleeping = builder.build(slept(ready.source), gpu.arch)
            work = with_others(ready.work, cubin=sleeping.cubin)
            found.append(Variant(name=f"{name} sleeping", text=str(candidate.schedule), work=work))
    return found


def measure(tools_cubin: bytes, uuid: str, problem: Problem, variants: list[Variant], num_turns: int) -> list[Json]:
    """A row for each variant, on the visible card."""
    from tuner.workers.gpu.card import CardView
    from tuner.workers.gpu.session import Session

    session = Session(tools_cubin, CardView(uuid))
    outcomes = [session.evaluate(problem, variant.work).outcome for variant in variants]
    turns: list[list[Any]] = []
    for _ in range(num_turns):
        turns.append([session.energy(problem, variant.work).report for variant in variants])
        print([round(report.run_mj or 0.0, 2) for report in turns[-1]], flush=True)
    rows = []
    for i, (variant, outcome) in enumerate(zip(variants, outcomes, strict=True)):
        reports = [turn[i] for turn in turns]
        rows.append({"variant": variant.name, "schedule": variant.text, **_figures(reports, turns, outcome)})
    return rows


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
            tools = builder.build(device_text("tools.cu"), gpu.arch).cubin
            variants = variants_of(row, gpu, builder)
    found: list[Json] = apart(measure, tools, card.uuid, row.problem, variants, options.turns)
    write_report(options.out or results_file(gpu.id, "energy"), [{"row": row.name, **one} for one in found], machine)
    for one in found:
        print(one)


if __name__ == "__main__":
    main()
