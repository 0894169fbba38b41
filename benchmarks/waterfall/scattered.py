"""What it gives that each part of a tile adds up a share of it: benchmarks/results/<gpu>/scattered_sums.json.

python -m benchmarks.waterfall.scattered [--row 8192-3584-swiglu/m192] [--seconds 120] [--out FILE]

Each middle pair's schedule of today is timed beside first guesses by arithmetic with scattered sums: large tiles, in
so many parts that all SMs have one; and whole waves of whole tiles, of which each op's last one is split. The first
guess of each kind is timed with the sums of the last part, too. All in the same rounds as the library, after a check
of their numbers, fused and an op a launch. About 15 seconds a row on 16 cores.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from benchmarks.waterfall.guesses import (
    CLOCK_MHZ,
    DRAM_BYTES_PER_US,
    LAUNCH_US,
    TASK_CLOCKS,
    Shape,
    heights,
    schedule_of,
    shapes_of,
    step_clocks,
)
from benchmarks.waterfall.on_card import Build, Builds, pair_on_card
from benchmarks.waterfall.rows import MIDDLE, WaterfallRow
from tuner.core.legal.legality import is_legal
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import PartSums

Json = dict[str, Any]

KINDS = (PlanKind.FUSED, PlanKind.TWO_LAUNCHES_PDL)
NUM_GUESSES, NUM_ROUNDS = 4, 11
#: Of what an SM gets of the L2 by the guesses of whole tiles: all of it, or so little that it does not bind.
L2_SHARES = (1.0, 0.0)
#: Clocks of parts that meet, whatever they have; and bytes that an SM stores or loads a clock meanwhile.
MEETING_CLOCKS, SUM_BYTES_A_CLOCK = 3_500, 48
SUM_BYTES = 4


def sums_clocks(op: TileOp, shape: Shape) -> float:
    """Of a part: it stores what the others finish, and loads what they have of its own share."""
    if shape.parts == 1:
        return 0.0
    sums = shape.tile.m * shape.tile.n * op.rows_per_column * (shape.parts - 1) / shape.parts
    return MEETING_CLOCKS + 2 * SUM_BYTES * sums / SUM_BYTES_A_CLOCK


def step_clocks_of(op: TileOp, shape: Shape, l2_share: float) -> float:
    """Of 64 elements of k; `l2_share` of what the guesses of whole tiles count of the L2."""
    tensor, smem, l2 = step_clocks(op, shape)
    return 4 * max(tensor, smem, l2_share * l2)


def op_clocks(op: TileOp, shape: Shape, num_sms: int, l2_share: float) -> float:
    """Of all tasks of an op: the waves that its tasks make."""
    tiles = -(-op.m // shape.tile.m) * -(-op.n // shape.tile.n)
    steps = ceil(ceil(op.k / 64) / shape.parts)
    task = steps * step_clocks_of(op, shape, l2_share) + TASK_CLOCKS + sums_clocks(op, shape)
    return -(-tiles * shape.parts // num_sms) * task


def tails_clocks(op: TileOp, shape: Shape, num_sms: int, l2_share: float) -> float:
    """Of an op's whole waves of whole tiles, and of the last one in parts."""
    tiles, steps = -(-op.m // shape.tile.m) * -(-op.n // shape.tile.n), -(-op.k // 64)
    each = step_clocks_of(op, shape, l2_share)
    clocks, tail = tiles // num_sms * (steps * each + TASK_CLOCKS), tiles % num_sms
    if tail == 0 or shape.parts == 1:
        return clocks + (tail > 0) * (steps * each + TASK_CLOCKS)
    part = ceil(steps / shape.parts) * each + TASK_CLOCKS + sums_clocks(op, shape)
    return clocks + ceil(tail * shape.parts / num_sms) * part


def us_of(workload: Workload, clocks: float) -> float:
    """Of the pair, which takes so many clocks of the busiest SM."""
    return LAUNCH_US + max(clocks / CLOCK_MHZ, workload.weight_bytes / DRAM_BYTES_PER_US)


def scattered(schedule: Schedule, split_tiles: SplitTiles = SplitTiles.ALL) -> Schedule:
    """The same, each part of a tile with a share of its sums."""
    tiling = replace(schedule.tiling, part_sums=PartSums.SCATTERED)
    ordering = replace(schedule.ordering, part_major=False, split_tiles=split_tiles)
    return schedule.but(tiling=tiling, ordering=ordering)


Ranked = list[tuple[float, Schedule]]


def first_legal(workload: Workload, gpu: Gpu, ranked: Ranked, count: int) -> Ranked:
    """The first legal ones of an order."""
    found: Ranked = []
    for us, schedule in sorted(ranked, key=lambda one: one[0]):
        if len(found) == count:
            break
        if is_legal(workload, gpu, schedule):
            found.append((us, schedule))
    return found


#: Of an op, a shape of its tiles, how many SMs there are, and the share of the L2: clocks of the busiest SM.
Clocks = Callable[[TileOp, Shape, int, float], float]


def guesses_in_parts(
    workload: Workload, gpu: Gpu, count: int, l2_share: float, clocks: Clocks, split_tiles: SplitTiles
) -> Ranked:
    """Tiles in parts, all of an op or those of its last wave: the best by the forecast, of each height and kind of
    operand at most two."""
    found: Ranked = []

    def of_op(op: TileOp, shape: Shape) -> float:
        return clocks(op, shape, gpu.num_sms, l2_share)

    for height, swap_ab, warpgroups in product(heights(workload.tile_ops[0].m), (False, True), (1, 2, 3)):
        per_op = [
            sorted(shapes_of(op, height, swap_ab, warpgroups), key=partial(of_op, op))[:10] for op in workload.tile_ops
        ]
        own = [
            (
                us_of(workload, sum(map(of_op, workload.tile_ops, shapes))),
                scattered(schedule_of(workload, shapes), split_tiles),
            )
            for shapes in product(*per_op)
            if max(shape.parts for shape in shapes) > 1
        ]
        found += first_legal(workload, gpu, own, 2)
    return sorted(found, key=lambda one: one[0])[:count]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One launch of a schedule."""

    schedule: Schedule
    plan_kind: PlanKind
    #: What the arithmetic says, microseconds; None for today's schedule.
    forecast_us: float | None

    @property
    def label(self) -> str:
        """In the file."""
        return f"{self.plan_kind}: {self.schedule}"


def asked_of(row: WaterfallRow, gpu: Gpu) -> Iterator[Asked]:
    """All launches of a row."""
    wanted: dict[Schedule, float | None] = {row.schedule: None, scattered(row.schedule): None}
    ways: tuple[tuple[Clocks, SplitTiles], ...] = ((op_clocks, SplitTiles.ALL), (tails_clocks, SplitTiles.TAILS))
    for (clocks, split_tiles), l2_share in product(ways, L2_SHARES):
        guesses = guesses_in_parts(row.workload, gpu, NUM_GUESSES, l2_share, clocks, split_tiles)
        for number, (us, schedule) in enumerate(guesses):
            wanted.setdefault(schedule, us)
            swept = schedule.but(ordering=replace(schedule.ordering, part_major=True))
            wanted.setdefault(swept, us)
            if number == 0:
                wanted.setdefault(schedule.but(tiling=replace(schedule.tiling, part_sums=PartSums.LAST)), us)
    for schedule, forecast_us in wanted.items():
        if not is_legal(row.workload, gpu, schedule):
            continue
        for kind in KINDS:
            yield Asked(schedule=schedule, plan_kind=kind, forecast_us=forecast_us)


def timed(row: WaterfallRow, builds: Builds) -> list[Json]:
    """The library and all launches of a row."""
    asked = {one.label: one for one in asked_of(row, builds.gpu)}
    with pair_on_card(row, builds.gpu.arch) as pair:
        graphs = {"library": pair.on_card.library_graph}
        rows = {
            name: Build(row=replace(row, schedule=one.schedule, plan_kind=one.plan_kind)) for name, one in asked.items()
        }
        for label, kernel in builds.try_all(rows).items():
            try:
                graphs[label] = pair.graph(kernel)
            except Exception as error:
                print("  not timed:", label, type(error).__name__, str(error)[:300], flush=True)
        times = pair.times(graphs, NUM_ROUNDS)
    return [
        {"row": row.name, "way": label, "us": round(one.us, 3), "clock_mhz": one.clock_mhz}
        | ({"forecast_us": asked[label].forecast_us} if label in asked else {})
        for label, one in times.items()
    ]


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
    path = options.out or results_file(target_id, "scattered_sums")
    try:
        for row in MIDDLE:
            if (not options.row or row.name in options.row) and watch.seconds < options.seconds:
                found = timed(row, builds)
                rows += found
                write_report(path, rows, machine)
                gc.collect()
                for one in sorted(found, key=lambda one: one["us"])[:6]:
                    print(watch.seconds, one, flush=True)
    finally:
        builds.close()


if __name__ == "__main__":
    main()
