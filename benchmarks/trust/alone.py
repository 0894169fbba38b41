"""Whether a kernel is as far ahead of the library between others, as finals time it, as where each runs alone for
seconds: results/<gpu>/alone.json.

python -m benchmarks.trust.alone [--row NAME ...] [--out FILE]

Under sustained load the library and kept winners of a row are timed both ways, by turns. Between others each sample of
40 ms has 40 ms of its own load in front, on a card that is settled. Alone each runs for 3 s, and then 1.5 s are timed.
A row of the file for each kernel: `between` and `alone` are the library's time over its own, one figure a repeat, and
the medians of these; the clocks are means, MHz. About 100 seconds a row of the benchmarks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.on_card import graphs_on_card, measure_on_card
from benchmarks.common.rows import Row
from benchmarks.common.workbench import Workbench
from benchmarks.trust.swing import ROWS, load, prepared_by
from tuner.core.trial.stats import median

#: Of the library in front of rounds, and of each kernel in front of its time alone.
SETTLING_LOAD_S = 4.0
OWN_LOAD_S = 3.0
#: Length of a sample alone.
ALONE_S = 1.5
NUM_ROUNDS = 12
NUM_REPEATS = 3

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """What a graph takes in one repeat."""

    time_us: float
    clock_mhz: float


def between_others(timer: Any, graphs: Sequence[Any]) -> list[Figure]:
    """By graph, the means over rounds on a settled card."""
    load(timer, graphs[0], SETTLING_LOAD_S)
    tracks = timer.rounds(graphs, lambda tracks, _: len(tracks[0]) >= NUM_ROUNDS)
    return [
        Figure(statistics.fmean(one.time_us for one in track), statistics.fmean(one.clock_mhz for one in track))
        for track in tracks
    ]


def alone(timer: Any, graphs: Sequence[Any], chain_length: int) -> list[Figure]:
    """By graph, one long sample behind its own load."""
    found = list[Figure]()
    for graph in graphs:
        load(timer, graph, OWN_LOAD_S)
        num_launches = max(1, round(1e6 * ALONE_S / (timer.sample_us(graph) * chain_length)))
        sample = timer.sample(graph, num_launches=num_launches)
        found.append(Figure(sample.time_us, sample.clock_mhz))
    return found


def rows_of(
    names: Sequence[str], between: Sequence[Sequence[Figure]], by_itself: Sequence[Sequence[Figure]]
) -> list[Json]:
    """A row for each kernel, from [repeat][graph] figures of both ways; the library is the first graph."""

    def speedups(figures: Sequence[Sequence[Figure]], i: int) -> list[float]:
        return [once[0].time_us / once[i].time_us for once in figures]

    def clock(figures: Sequence[Sequence[Figure]], i: int) -> int:
        return round(statistics.fmean(once[i].clock_mhz for once in figures))

    return [
        {
            "kernel": name,
            "between": round(median(speedups(between, i)), 4),
            "alone": round(median(speedups(by_itself, i)), 4),
            "between_each": [round(one, 4) for one in speedups(between, i)],
            "alone_each": [round(one, 4) for one in speedups(by_itself, i)],
            "between_mhz": clock(between, i),
            "alone_mhz": clock(by_itself, i),
            "alone_us": [round(once[i].time_us, 3) for once in by_itself],
        }
        for i, name in enumerate(names)
    ]


def measured(bench: Workbench, row: Row) -> list[Json]:
    """The figures of the library and of each kernel on the visible card, once the numbers of all are right."""
    kernels = prepared_by(bench, row)
    between, by_itself = list[list[Figure]](), list[list[Figure]]()
    with graphs_on_card(row.problem, bench.gpu.arch, kernels) as (timer, graphs):
        for _ in range(NUM_REPEATS):
            between.append(between_others(timer, graphs))
            by_itself.append(alone(timer, graphs, timer.data.chain_length))
    return rows_of(["library", *(str(kernel.work.plan_kind) for kernel in kernels)], between, by_itself)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the rows, and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="default: one of 512 and one of 2048 rows")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/alone.json")
    options = parser.parse_args(arguments)
    measure_on_card("alone", options.row or ROWS, options.out, measured, lack="a simulated one has no power limit")


if __name__ == "__main__":
    main()
