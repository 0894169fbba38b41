"""Which tiles and rings are fastest for a pair of convolutions: benchmarks/results/<gpu>/conv_sweep.json.

python -m benchmarks.conv.sweep [--row r50-s1-3x3-1x1/b1 ...] [--seconds 100] [--shapes 2] [--out FILE]

For each tile height, it tries the shapes that are best by calculation, with the deepest rings. Each is a single
programmatic launch; all are timed in the same rounds as the library. The results of the three fastest are checked.
It takes about 6 seconds per row on 16 cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.conv.rows import Row, rows
from benchmarks.conv.search import workload_of
from benchmarks.waterfall.on_card import Build, Builds, measure_rows, pair_on_card
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.legal.legality import check_schedule
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.joint import any_space_of
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tilings import WgmmaTilings
from tuner.errors import TunerError

Json = dict[str, Any]

NUM_CHECKED = 3
#: Rounds of all.
NUM_ROUNDS = 7


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rows until the time limit."""
    parser = parser_of(__doc__, "row", "out", seconds=100)
    parser.add_argument("--shapes", type=int, default=2, help="of each height")
    options = parser.parse_args(arguments)
    by_shapes = partial(measured, num_shapes=options.shapes)
    measure_rows("conv_sweep", options, lambda _: called(rows(), options.row), by_shapes)


def tilings_of(space: Space, num_shapes: int) -> Iterator[Tiling]:
    """Tilings to try, each once."""
    tilings, by_height = WgmmaTilings(space.workload, space.gpu), dict[tuple[Any, ...], dict[Any, Tiling]]()
    for tiling in tilings.tilings():
        height = (tiling.tiles[0].m, tiling.num_warps, tiling.cluster, tiling.swap_ab, tiling.warpgroups)
        by_height.setdefault(height, {}).setdefault((tiling.tiles, tiling.split_k), tiling)
    for of_shapes in by_height.values():
        yield from islice(of_shapes.values(), num_shapes)


def measured(row: Row, builds: Builds, num_shapes: int) -> Json:
    """Times of all, the fastest first."""
    space = any_space_of(workload := workload_of(row), builds.gpu)
    assert isinstance(space, Space)
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=Assignment.STATIC)
    asked = dict[str, Build]()
    for tiling in tilings_of(space, num_shapes):
        schedule = Schedule.of(tiling=tiling, ordering=ordering)
        try:
            check_schedule(workload, builds.gpu, schedule)
        except TunerError:
            continue
        one = WaterfallRow(name=row.name, workload=workload, schedule=schedule, plan_kind=PlanKind.FUSED_PDL)
        asked[str(schedule)] = Build(row=one)
    kernels = builds.make_all(asked)
    with pair_on_card(next(iter(asked.values())).row, builds.gpu.arch) as pair:
        graphs = {name: pair.graph(kernel, checked=False) for name, kernel in kernels.items()}
        times = pair.times({"library": pair.on_card.library_graph, **graphs}, NUM_ROUNDS)
        library_us = times.pop("library").us
        in_order = sorted(times, key=lambda name: times[name].us)
        for name in in_order[:NUM_CHECKED]:
            pair.graph(kernels[name])
    us = {name: round(times[name].us, 3) for name in in_order}
    return {"floor_us": round(row.floor_us, 3), "library_us": round(library_us, 3), "us": us}


if __name__ == "__main__":
    main()
