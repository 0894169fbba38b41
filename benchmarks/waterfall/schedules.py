"""First guesses by arithmetic, and neighbours placed together, beside the library: results/<gpu>/middle_guesses.json.

python -m benchmarks.waterfall.schedules [--row 7168-5120-swiglu/m300] [--deeper] [--seconds 240] [--out FILE]

Each middle pair's schedule of today is timed beside the first guesses of `benchmarks.waterfall.guesses`, fused, plainly
and programmatically. Where a tile has not all rows, so that neighbours share weights, both are also launched with the
neighbours placed together (`benchmarks.waterfall.gangs`). All in the same rounds, after a check of their numbers.
About 15 seconds a row on 16 cores.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.reference import rates_of, reference_us
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from benchmarks.waterfall.guesses import RING_BYTES, SEATS, guesses
from benchmarks.waterfall.on_card import Build, Builds, PairOnCard, pair_on_card
from benchmarks.waterfall.rows import MIDDLE, WaterfallRow
from tuner.core.legal.legality import check_schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule

Json = dict[str, Any]

NUM_GUESSES, NUM_TOGETHER, NUM_ROUNDS = 8, 2, 11
KINDS = (PlanKind.FUSED, PlanKind.FUSED_PDL)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One launch of a schedule."""

    schedule: Schedule
    plan_kind: PlanKind
    #: CTAs that are placed together; 1: wherever the hardware likes.
    gang: int
    #: What the arithmetic says, microseconds; None for today's schedule.
    forecast_us: float | None

    @property
    def label(self) -> str:
        """In the file."""
        gang = f", {self.gang} together" if self.gang > 1 else ""
        return f"{self.plan_kind}{gang}: {self.schedule}"


def deeper(row: WaterfallRow) -> Iterator[Schedule]:
    """Today's schedule with steps of 128 of k in the first op, in the second, and in both: half as many barriers."""
    tiling, ops = row.schedule.tiling, row.workload.tile_ops
    for depths in ((128, 64), (64, 128), (128, 128)):
        tiles = tuple(replace(tile, k=depth) for tile, depth in zip(tiling.tiles, depths, strict=True))
        widths = [tile.m + tile.n * op.rows_per_column for tile, op in zip(tiles, ops, strict=True)]
        stage_bytes = max(2 * tile.k * width for tile, width in zip(tiles, widths, strict=True))
        stages = RING_BYTES // stage_bytes
        if stages >= 2 and tiles != tiling.tiles:
            changed = replace(tiling, tiles=tiles, num_stages=stages, input_stages=stages)
            yield row.schedule.but(tiling=changed)


def deeper_of(row: WaterfallRow, builds: Builds) -> Iterator[Asked]:
    """Today's schedule, and the same in deeper steps, plainly."""
    for schedule in (row.schedule, *deeper(row)):
        try:
            check_schedule(row.workload, builds.gpu, schedule)
        except IllegalSchedule as error:
            print("  not legal:", str(error)[:200], flush=True)
            continue
        yield Asked(schedule=schedule, plan_kind=PlanKind.FUSED, gang=1, forecast_us=None)


def asked_of(row: WaterfallRow, builds: Builds) -> Iterator[Asked]:
    """All launches of a row."""
    alone: list[tuple[float | None, Schedule]] = [(None, row.schedule)]
    alone += guesses(row.workload, builds.gpu, NUM_GUESSES)
    together: list[tuple[int, float | None, Schedule]] = [
        (gang, *one) for gang in SEATS for one in guesses(row.workload, builds.gpu, NUM_TOGETHER, row_tiles=gang)
    ]
    together += [
        (gang, None, row.schedule.but(ordering=replace(row.schedule.ordering, reserved_sms=132 - seats)))
        for gang, seats in SEATS.items()
        if gang == -(-row.workload.tile_ops[0].m // row.schedule.tiling.tiles[0].m)
    ]
    for gang, forecast, schedule in [*((1, *one) for one in alone), *together]:
        for kind in KINDS:
            yield Asked(schedule=schedule, plan_kind=kind, gang=gang, forecast_us=forecast)


Ask = Callable[[WaterfallRow, Builds], Iterator[Asked]]


def graphs_of(
    row: WaterfallRow, pair: PairOnCard, asked: dict[str, Asked], builds: Builds
) -> Iterator[tuple[str, Any]]:
    """Of those that the card takes and whose numbers are right."""
    kernels = builds.try_all(
        {label: Build(row=replace(row, schedule=one.schedule, plan_kind=one.plan_kind)) for label, one in asked.items()}
    )
    for label, kernel in kernels.items():
        try:
            yield label, pair.graph(kernel, gang=asked[label].gang)
        except Exception as error:
            print("  not timed:", label, type(error).__name__, str(error)[:200], flush=True)


def timed(row: WaterfallRow, builds: Builds, target_id: str, ask: Ask) -> list[Json]:
    """The library and all launches of a row that `ask` says."""
    asked = {one.label: one for one in ask(row, builds)}
    with pair_on_card(row, builds.gpu.arch) as pair:
        graphs = {"library": pair.on_card.library_graph, **dict(graphs_of(row, pair, asked, builds))}
        times = pair.times(graphs, NUM_ROUNDS)
    rates = rates_of(target_id)
    floor = {"floor_us": round(reference_us(row.workload, rates), 3)} if rates else {}
    return [
        {"row": row.name, "way": label, "us": round(one.us, 3), "clock_mhz": one.clock_mhz, **floor}
        | ({"forecast_us": asked[label].forecast_us} if label in asked else {})
        for label, one in times.items()
    ]


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no row is begun")
    parser.add_argument("--deeper", action="store_true", help="today's schedules in steps of 128 of k, no guesses")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch, rows = Watch(), list[Json]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine, target_id = machine_of(bench.evaluator.environment()), bench.evaluator.target.id
        builds = Builds(bench.gpu)
    path = options.out or results_file(target_id, "middle_deeper" if options.deeper else "middle_guesses")
    try:
        for row in MIDDLE:
            if (not options.row or row.name in options.row) and watch.seconds < options.seconds:
                found = timed(row, builds, target_id, deeper_of if options.deeper else asked_of)
                rows += found
                write_report(path, rows, machine)
                gc.collect()
                for one in sorted(found, key=lambda one: one["us"])[:7]:
                    print(watch.seconds, one, flush=True)
    finally:
        builds.close()


if __name__ == "__main__":
    main()
