"""Room for the sums of CTAs that share a tile's k: benchmarks/results/<gpu>/sum_rooms.json.

python -m benchmarks.waterfall.rooms [--seconds 40] [--out FILE]

Of each middle pair and way of launching, the first shipped winner whose CTAs share k, with each room that it may have
and as many of its stages as then fit. All of a pair are timed in the same rounds as its library, after a check of their
numbers. About 5 seconds a pair.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from benchmarks.waterfall.on_card import Build, Builds, pair_on_card
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Tiling
from tuner.winners import ShippedWinners

LIBRARY = "library"


def with_rooms(workload: Workload, gpu: Gpu, tiling: Tiling) -> Iterator[Tiling]:
    """Of each room the tiling with the most stages that are legal, none more than it has."""
    for room in axes_of(Tiling)["sum_kib"].values:
        for num_stages in range(tiling.num_stages, 2, -1):
            inputs = min(num_stages, tiling.input_stages)
            one = replace(tiling, sum_kib=room, num_stages=num_stages, input_stages=inputs)
            if tiling_problem(workload, gpu, one) is None:
                yield one
                break


def rows_of(gpu: Gpu) -> dict[str, list[WaterfallRow]]:
    """By pair, what is timed; pairs without a choice are left out."""
    found: dict[str, dict[PlanKind, list[WaterfallRow]]] = {}
    for winner in ShippedWinners().of(gpu.id):
        schedule, kind, name = (
            winner.candidate.schedule,
            winner.candidate.plan_kind,
            winner.source.partition("middle/")[2],
        )
        if schedule is None or not name or schedule.tiling.cluster_k == 1 or kind is PlanKind.TWO_STREAMS:
            continue
        rooms = with_rooms(winner.workload, gpu, schedule.tiling)
        schedules = [schedule.but(tiling=tiling) for tiling in rooms]
        rows = [WaterfallRow(name=name, workload=winner.workload, schedule=one, plan_kind=kind) for one in schedules]
        if len(rows) > 1:
            found.setdefault(name, {}).setdefault(kind, rows)
    return {name: [row for rows in of_kind.values() for row in rows] for name, of_kind in found.items()}


def timed(rows: list[WaterfallRow], builds: Builds) -> list[dict[str, Any]]:
    """A line for the library and each row of a pair."""
    named = {f"{row.plan_kind}: {row.schedule}": row for row in rows}
    kernels = builds.make_all({way: Build(row=row) for way, row in named.items()})
    with pair_on_card(rows[0], builds.gpu.arch) as pair:
        graphs = {LIBRARY: pair.on_card.library_graph} | {way: pair.graph(one) for way, one in kernels.items()}
        times = pair.times(graphs)
    library_us = times[LIBRARY].us
    return [
        {
            "row": rows[0].name,
            "way": way,
            "sum_kib": named[way].schedule.tiling.sum_kib if way in named else None,
            "us": round(one.us, 3),
            "over_library": round(library_us / one.us, 4),
            "clock_mhz": one.clock_mhz,
        }
        for way, one in times.items()
    ]


def main() -> None:
    """Measures all pairs, one after the other, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="after which no pair is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch, lines = Watch(), list[dict[str, Any]]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine, target_id = machine_of(bench.evaluator.environment()), bench.evaluator.target.id
        builds, pairs = Builds(bench.gpu), rows_of(bench.gpu)
    try:
        for rows in pairs.values():
            if watch.seconds < options.seconds:
                lines += timed(rows, builds)
                gc.collect()
                write_report(options.out or results_file(target_id, "sum_rooms"), lines, machine)
                for line in lines[-len(rows) - 1 :]:
                    print(watch.seconds, line, flush=True)
    finally:
        builds.close()


if __name__ == "__main__":
    main()
