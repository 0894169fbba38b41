"""What it gives to place neighbours that share weights together: benchmarks/results/<gpu>/neighbours.json.

python -m benchmarks.waterfall.neighbours [--row middle/gpt3-tp8/m96] [--seconds 120] [--out FILE]

The fastest fused schedules that ship for an H200, of middle pairs and of chains at 96 to 256 rows, whose tiles have not
all rows. Each is launched plainly and programmatically, fused and an op a launch: as it is, with two neighbours placed
together (`benchmarks.waterfall.gangs`), and with the next launch let in at the end. All in the same rounds as the
library, after a check of their numbers. About 8 seconds a row on 16 cores.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from benchmarks.waterfall.on_card import Build, Builds, pair_on_card
from benchmarks.waterfall.patches import LATE_TRIGGER
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.winners import ShippedWinners

Json = dict[str, Any]

#: Whose winners are taken: of other cards they would be other schedules.
TARGET = "h200"
ROWS = (96, 256)
TOGETHER = 2


def shared_rows() -> list[WaterfallRow]:
    """The rows, each with its fastest plain fused schedule that has neighbours which share weights."""
    found = dict[str, WaterfallRow]()
    for one in ShippedWinners().of(TARGET):
        name, schedule = one.source.removeprefix("shipped "), one.candidate.schedule
        if (
            schedule is None
            or one.candidate.plan_kind is not PlanKind.FUSED
            or not name.startswith(("middle", "chains"))
        ):
            continue
        m, tiling = one.workload.tile_ops[0].m, schedule.tiling
        if ROWS[0] <= m <= ROWS[1] and all(tile.m < m for tile in tiling.tiles) and tiling.cluster_size == 1:
            found.setdefault(name, WaterfallRow(name=name, workload=one.workload, schedule=schedule))
    return list(found.values())


def ways(row: WaterfallRow) -> dict[str, tuple[Build, int]]:
    """By label: what is built, and how many CTAs are placed together."""
    apart = (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL)
    if len(row.workload.tile_ops) > 2:
        apart = (PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL)
    found = dict[str, tuple[Build, int]]()
    for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL, *apart):
        own = row.launched(kind)
        found[str(kind)] = Build(row=own), 1
        found[f"{kind}, {TOGETHER} together"] = Build(row=own), TOGETHER
        if kind.is_programmatic:
            found[f"{kind}, late trigger"] = Build(row=own, patches=LATE_TRIGGER), 1
    return found


def timed(row: WaterfallRow, builds: Builds) -> list[Json]:
    """The library and all ways of a row."""
    asked = ways(row)
    with pair_on_card(row, builds.gpu.arch) as pair:
        graphs = {"library": pair.on_card.library_graph}
        for label, kernel in builds.try_all({label: build for label, (build, _) in asked.items()}).items():
            try:
                graphs[label] = pair.graph(kernel, gang=asked[label][1])
            except Exception as error:
                print("  not timed:", label, type(error).__name__, str(error)[:200], flush=True)
        times = pair.times(graphs)
    named = {"row": row.name, "schedule": str(row.schedule)}
    return [named | {"way": label, "us": round(one.us, 3), "clock_mhz": one.clock_mhz} for label, one in times.items()]


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no row is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch, rows = Watch(), list[Json]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine, target_id = machine_of(bench.evaluator.environment()), bench.evaluator.target.id
        builds = Builds(bench.gpu)
    path = options.out or results_file(target_id, "neighbours")
    try:
        for row in shared_rows():
            if (not options.row or row.name in options.row) and watch.seconds < options.seconds:
                found = timed(row, builds)
                rows += found
                write_report(path, rows, machine)
                gc.collect()
                print(watch.seconds, row.name, {one["way"]: one["us"] for one in found}, flush=True)
    finally:
        builds.close()


if __name__ == "__main__":
    main()
