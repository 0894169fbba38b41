"""What merged neighbours gain with high tiles, and what the clock costs: benchmarks/results/<gpu>/clocks.json.

python -m benchmarks.waterfall.clocks [--row 7168-5120] [--seconds 60] [--out FILE]

A row is a pair with several kernels, each launched plainly and programmatically, with neighbours placed together and
without. All are timed in the same rounds as the library, cold, in burst, with the SM clock of each sample; then again
with weights and inputs of zeros, which switch few transistors: the same instructions at a higher clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.rows import choose_rows
from benchmarks.waterfall.on_card import Build, Builds, PairOnCard, measure_rows, pair_on_card
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import placed_together
from tuner.core.trial.stats import relative_spread
from tuner.errors import TunerError

_KINDS = (PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL)
_TAILS = "column+column producer_first split-tails row-sync static 1/SM"
_PLAIN = "column+column producer_first row-sync static 1/SM"
#: Row -> tilings and orderings.
KERNELS = {
    "held-out/7168-5120/m300": (
        f"wgmma 152x64x64+152x112x64 s6 i6 w8 swap-ab split4+1 scattered-sums | {_TAILS}",
        f"wgmma 112x120x64+112x168x64 s5 i5 w8 | {_PLAIN}",
    ),
    "wide/8192-3584/m320": (f"wgmma 160x64x64+160x128x64 s6 i6 w8 swap-ab | {_PLAIN}",),
    "held-out/5120-6400/m300": (
        f"wgmma 152x104x64+152x128x64 s5 i5 w8 swap-ab | {_PLAIN}",
        f"wgmma 64x128x64+64x200x64 s5 i5 w4 | {_PLAIN}",
    ),
    "held-out/7168-5120/m333": (f"wgmma 168x64x64+168x112x64 s6 i6 w8 swap-ab split4+1 scattered-sums | {_TAILS}",),
    "held-out/7168-5120/m200": (
        f"wgmma 104x64x64+104x112x64 s7 i7 w4 swap-ab split4+1 scattered-sums | {_TAILS}",
        "wgmma 200x32x64+200x64x64 s6 i6 w4 swap-ab split4+1 scattered-sums | "
        "row+row producer_first split-tails row-sync static 1/SM less 4 SMs",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """A pair and its kernels, by their names."""

    name: str
    ways: dict[str, WaterfallRow]


def rows_of(names: Iterable[str]) -> Iterator[Kernels]:
    """The rows whose names have one of these parts; all by default."""
    asked = list(names)
    for name, lines in KERNELS.items():
        if asked and not any(one in name for one in asked):
            continue
        (row,) = choose_rows(names=[name])
        ways = {}
        for line in lines:
            alone = read_line(line)
            is_low = alone.tiling.tiles[0].m < row.m
            for kind in _KINDS:
                for schedule in (alone, *([placed_together(alone)] if is_low else [])):
                    way = WaterfallRow(name=name, workload=row.workload, schedule=schedule, plan_kind=kind)
                    ways[f"{kind} {schedule}"] = way
        yield Kernels(name=name, ways=ways)


def measured(row: Kernels, builds: Builds) -> dict[str, Any]:
    """Times and clocks of the library and of each kernel, with random numbers and with zeros."""
    first = next(iter(row.ways.values()))
    kernels = builds.make_all({name: Build(row=way) for name, way in row.ways.items()})
    with pair_on_card(first, builds.gpu.arch) as pair:
        graphs = {"library": pair.on_card.library_graph}
        refused = {}
        for name, kernel in kernels.items():
            try:
                graphs[name] = pair.graph(kernel)
            except TunerError as error:
                refused[name] = str(error)[:200]
        random = figures(pair, graphs)
        clear(pair)
        zeros = figures(pair, graphs)
    ways = [{"way": name, **random[name], "of_zeros": zeros[name]} for name in graphs]
    return {"ways": ways, "refused": refused}


def figures(pair: PairOnCard, graphs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By graph: the median time of a run, its spread, and the clock."""
    times = pair.times(graphs, 20)
    return {
        name: {"us": round(one.us, 3), "spread": round(relative_spread(one.times_us), 4), "clock_mhz": one.clock_mhz}
        for name, one in times.items()
    }


def clear(pair: PairOnCard) -> None:
    """Sets all weights and inputs of timed runs to zero."""
    data = pair.on_card.data
    for weights in data._weights:
        for array in weights:
            array.fill(0)
    for inputs in data._inputs:
        for array in inputs.values():
            array.fill(0)


def main() -> None:
    """Measures the rows of the command line."""
    options = parser_of(__doc__, "row", "out", seconds=60.0).parse_args()
    measure_rows("clocks", options, lambda _: rows_of(options.row), measured)


if __name__ == "__main__":
    main()
