"""How long a load must be in front of a sample at the power limit, and how long a sample: each chain's time, recorded.

python -m benchmarks.trust.settling [--row NAME ...] [--out FILE]

The library's chain and that of the row's fastest kept kernel run without a pause, a quarter of a second each in turn,
and each chain is timed by events. From this record any load and any sample can be cut. A row of the file for each pair
of lengths says what the median ratio over the turns is (`ratio`), how far that is from the one with the longest load
(`bias`), and how far single turns lie apart (`spread`). `pause` rows say what chains take behind an idle pause, over
what they take at the end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from tests.support.counting import apart
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.stats import median, relative_spread
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work
from tuner.workers.source.tools import tools_source

ROWS = ("prefill-swiglu/llama3-70b-tp8/m512", "prefill-plain/llama3-8b/m2048")
#: Seconds of a turn, and how many turns each chain has.
TURN_S, NUM_TURNS = 0.25, 12
#: Turns in which the card comes to its limit, left out.
NUM_FIRST = 3
#: Idle in front of all, and in front of the last, long run; and the seconds of that.
PAUSE_S, SHORT_PAUSE_S, LAST_S = 0.5, 0.06, 2.0
LOADS_MS, SAMPLES_MS = (8, 20, 40, 60, 80, 120), (5, 10, 20, 40, 80, 120)
#: Chains that are enqueued ahead.
_DEPTH = 4

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One chain's graph, again and again."""

    #: 0 is the library's.
    graph: int
    #: Of each launch, milliseconds since the turn began: when it ended.
    ends_ms: list[float]

    def mean_ms(self, load_ms: float, sample_ms: float) -> float | None:
        """Of one launch, of those that lie in the sample behind the load; None where no two ends do."""
        ends = np.array([0.0, *self.ends_ms])
        inside = ends[(ends >= load_ms) & (ends <= load_ms + sample_ms)]
        return None if inside.size < 2 else float((inside[-1] - inside[0]) / (inside.size - 1))


def turns_of(tools_cubin: bytes, uuid: str, problem: Problem, work: Work) -> list[Turn]:
    """All turns, on the visible card; the last one is the work's alone, behind a pause."""
    import cupy

    from tuner.workers.gpu.launching.launch import Kernel
    from tuner.workers.gpu.library.runners import launchable_of, runner_of
    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.card import CardView
    from tuner.workers.gpu.measuring.problem import ProblemOnCard

    tools = cupy.cuda.function.Module()
    tools.load(tools_cubin)
    prepared = ProblemOnCard(problem, tools, open_vendor(), CardView(uuid))
    timer = prepared.timer
    graphs = [prepared.library_graph, timer.capture(runner_of(work, Kernel(launchable_of(work))))]
    for graph in graphs:
        timer.sample_us(graph)

    def turn(graph: int, seconds: float) -> tuple[Any, list[Any], int]:
        """Its events, which are read when all turns are over, so that none waits."""
        begin, ends = cupy.cuda.Event(), list[Any]()
        begin.record(timer.stream)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            graphs[graph].launch(timer.stream)
            ends.append(cupy.cuda.Event())
            ends[-1].record(timer.stream)
            if len(ends) > _DEPTH:
                ends[-_DEPTH].synchronize()
        return begin, ends, graph

    time.sleep(PAUSE_S)
    begun = [turn(i % 2, TURN_S) for i in range(2 * NUM_TURNS)]
    timer.stream.synchronize()
    time.sleep(SHORT_PAUSE_S)
    begun.append(turn(1, LAST_S))
    timer.stream.synchronize()
    return [
        Turn(graph=graph, ends_ms=[float(cupy.cuda.get_elapsed_time(begin, end)) for end in ends])
        for begin, ends, graph in begun
    ]


def length_rows(turns: Sequence[Turn]) -> list[Json]:
    """A row for each load and sample that a turn holds."""
    pairs = [(turns[i], turns[i + 1]) for i in range(2 * NUM_FIRST, 2 * NUM_TURNS, 2)]

    def ratios(load_ms: float, sample_ms: float) -> list[float]:
        found = [(a.mean_ms(load_ms, sample_ms), b.mean_ms(load_ms, sample_ms)) for a, b in pairs]
        return [library / own for library, own in found if library and own]

    settled = median(ratios(1e3 * TURN_S / 2, 1e3 * TURN_S / 2))
    rows = []
    for load_ms in LOADS_MS:
        for sample_ms in SAMPLES_MS:
            if load_ms + sample_ms < 1e3 * TURN_S and len(found := ratios(load_ms, sample_ms)) > 2:
                rows.append(
                    {
                        "load_ms": load_ms,
                        "sample_ms": sample_ms,
                        "ratio": round(median(found), 5),
                        "bias": round(median(found) / settled - 1, 5),
                        "spread": round(relative_spread(found), 5),
                    }
                )
    return rows


def pause_rows(last: Turn) -> list[Json]:
    """What chains take behind a pause, in steps, over what they take in the last quarter."""
    settled = last.mean_ms(750 * LAST_S, 250 * LAST_S) or 1.0
    steps = [(begin, last.mean_ms(begin, 100)) for begin in range(0, int(1e3 * LAST_S), 100)]
    return [{"pause_s": SHORT_PAUSE_S, "at_ms": at, "over_settled": round(ms / settled, 4)} for at, ms in steps if ms]


def rows_of(row: Row, uuid: str, builder: Builder, gpu: Any, tools: bytes) -> list[Json]:
    """Of one row of the benchmarks.

    Raises:
        ValueError: no kernel of it is kept, or it is refused.
    """
    kept = [one for one in ShippedWinners().of(gpu.id) if one.source == f"shipped {row.name}"]
    kept = [one for one in kept if one.candidate.plan_kind.is_ours]
    if not kept:
        raise ValueError(f"no kernel of {row.name} is kept for {gpu.id}")
    ready = prepare(row.workload, gpu, min(kept, key=lambda one: one.time_us).candidate, builder, {})
    if ready.refusal:
        raise ValueError(ready.refusal)
    turns: list[Turn] = apart(turns_of, tools, uuid, row.problem, ready.work)
    found = [*length_rows(turns[:-1]), *pause_rows(turns[-1])]
    series = [{"graph": turn.graph, "ends_ms": [round(ms, 3) for ms in turn.ends_ms]} for turn in turns]
    return [{"row": row.name, **one} for one in found] + [{"row": row.name, "turns": series}]


def main(arguments: Sequence[str] | None = None) -> None:
    """Records, and writes the results file after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="default: one of 512 and one of 2048 rows")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    card = usable_gpus()[0]
    with TemporaryDirectory() as cache:
        with closing(GpuSupervisor(card, Path(cache))) as supervisor:
            gpu, machine = supervisor.target.gpu, machine_of(supervisor.environment())
        found = list[Json]()
        with closing(Builder(Path(cache))) as builder:
            tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
            for row in choose_rows(names=options.row or ROWS):
                found += rows_of(row, card.uuid, builder, gpu, tools)
                write_report(options.out or results_file(gpu.id, "settling"), found, machine)
    for one in found:
        if "turns" not in one:
            print(one)


if __name__ == "__main__":
    main()
