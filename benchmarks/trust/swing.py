"""How a card's clock swings behind an idle moment, and what load in front of the first round settles it:
results/<gpu>/swing.json.

python -m benchmarks.trust.swing [--row NAME ...] [--pause SECONDS ...] [--load SECONDS ...] [--out FILE]

Under sustained load the library and kept winners of a row are timed as finals time them, behind so many idle seconds
and so many of the library. A row of the file for each pause and load: `by_round` is what samples of a round take over
the median of their kernel, in the mean. `scatter` is the standard deviation of a kernel's ratios to the library in a
process's rounds, and `ratios` are their medians. About 130 seconds a row of the benchmarks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.kept import kept_for
from benchmarks.common.on_card import graphs_on_card, measure_on_card
from benchmarks.common.rows import Row
from benchmarks.common.workbench import Workbench
from tuner.core.trial.stats import median
from tuner.errors import WorkerError
from tuner.workers.builder.prepare import PreparedKernel

ROWS = ("prefill-swiglu/llama3-70b-tp8/m512", "prefill-plain/llama3-8b/m2048")
#: Of the library in front of the first round, seconds.
LOADS_S = (0.0, 1.0, 2.0, 4.0)
#: Idle in front of a series: within a job, between two of its requests, and where a fresh process comes.
PAUSES_S = (0.1, 0.3, 1.0)
#: Kept winners beside the library, as the contests of `benchmarks.search` have them.
NUM_KEPT = 4
#: Of one process in finals under sustained load.
NUM_ROUNDS = 8
#: Series of rounds by each pause and load, which take turns.
NUM_REPEATS = 2

Json = dict[str, Any]
#: [graph][round], microseconds; the library's come first.
Times = Sequence[Sequence[float]]
#: Idle seconds, and seconds of load behind them.
Front = tuple[float, float]


def prepared_by(bench: Workbench, row: Row) -> list[PreparedKernel]:
    """The winners that are kept for a row, each tiling and order once, proven and built.

    Raises:
        WorkerError: none is kept, or one is refused.
    """
    kept = dict.fromkeys(one.candidate for one in kept_for(row.name, bench.gpu.id) if one.candidate.plan_kind.is_ours)
    prepared = [bench.evaluator.prepare(row.problem, candidate) for candidate in list(kept)[:NUM_KEPT]]
    if refused := [one for one in prepared if not isinstance(one, PreparedKernel)] or not prepared:
        raise WorkerError(f"{row.name}: no kernel is kept, or one is refused: {refused}")
    return [one for one in prepared if isinstance(one, PreparedKernel)]


def load(timer: Any, graph: Any, seconds: float) -> None:
    """Runs a graph again and again; at most two launches are left to run."""
    end, launches = time.perf_counter() + seconds, timer.keep_busy(graph)
    while time.perf_counter() < end:
        next(launches)


def series_by(timer: Any, graphs: Sequence[Any], fronts: Sequence[Front]) -> dict[Front, list[Times]]:
    """By pause and load, what each series of rounds took."""
    found: dict[Front, list[Times]] = {front: [] for front in fronts}
    for _ in range(NUM_REPEATS):
        for (pause_s, load_s), series in found.items():
            timer.rest()
            time.sleep(pause_s)
            load(timer, graphs[0], load_s)
            tracks = timer.rounds(graphs, lambda tracks, _: len(tracks[0]) >= NUM_ROUNDS)
            series.append([[sample.time_us for sample in track] for track in tracks])
    return found


def figures_of(series: Sequence[Times]) -> Json:
    """Of the series by one pause and load."""
    middles = [median([us for times in series for us in times[i]]) for i in range(len(series[0]))]
    over = [[[us / middles[i] for us in track] for i, track in enumerate(times)] for times in series]
    ratios = [[[a / b for a, b in zip(times[0], track, strict=True)] for track in times[1:]] for times in series]
    by_kernel = [[ratio for times in ratios for ratio in times[i]] for i in range(len(ratios[0]))]
    return {
        "by_round": [
            round(statistics.fmean(track[number] for times in over for track in times), 4)
            for number in range(len(series[0][0]))
        ],
        "scatter": round(median([statistics.stdev(track) / median(track) for times in ratios for track in times]), 4),
        "ratios": [round(median(one), 4) for one in by_kernel],
        "times_us": [[[round(us, 3) for us in track] for track in times] for times in series],
    }


def measured(fronts: Sequence[Front], bench: Workbench, row: Row) -> list[Json]:
    """The figures of all pauses and loads on the visible card, once the numbers of all kernels are right."""
    with graphs_on_card(row.problem, bench.gpu.arch, prepared_by(bench, row)) as (timer, graphs):
        series = series_by(timer, graphs, fronts)
    return [{"pause_s": pause_s, "load_s": load_s} | figures_of(found) for (pause_s, load_s), found in series.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the rows, and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="default: one of 512 and one of 2048 rows")
    parser.add_argument("--pause", action="append", type=float, help="default: 0.1, 0.3 and 1 second")
    parser.add_argument("--load", action="append", type=float, help="default: 0, 1, 2 and 4 seconds")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/swing.json")
    options = parser.parse_args(arguments)
    fronts = list(product(options.pause or PAUSES_S, options.load or LOADS_S))
    lack = "the clock of a simulated one does not swing"
    measure_on_card("swing", options.row or ROWS, options.out, partial(measured, fronts), lack=lack)


if __name__ == "__main__":
    main()
