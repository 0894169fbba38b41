"""Waterfalls of six middle pairs, for the library and for ours: benchmarks/results/<gpu>/waterfall.json.

python -m benchmarks.waterfall.measure [--row 12288-6144/m96] [--seconds 240] [--out FILE]

Each pair is timed together with the library, and with one thing left out at a time: inputs, weights, products,
epilogue, and all of these. Then a traced build stamps its tasks. When all pairs have been timed, the counters of the
same graphs are read. The bars of a row are those of `tuner.core.insight.waterfall`; `holds` says whether they sum to
the time within 5 %. It takes about 20 seconds per row on 16 cores.
"""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import in_time, parser_of
from benchmarks.common.reference import rates_of, reference_us
from benchmarks.common.report import results_file, write_report
from benchmarks.waterfall.on_card import Build, Builds, PairOnCard, Timed, open_builds, pair_on_card
from benchmarks.waterfall.patches import LEFT_OUT
from benchmarks.waterfall.rows import OTHERS, ROWS, WaterfallRow
from tuner.core.insight.waterfall import TENSOR_CORES, Figures, stamped_epilogue_us, waterfall_of

Json = dict[str, Any]

LIBRARY, OURS = "library", "ours"
#: Launches of the library: one for each product, and an elementwise kernel after a gated one.
_WITHOUT_FINISH, _EMPTY = "library without its activation kernel", "launches without work"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Results of a row that are needed when its counters are read."""

    row: WaterfallRow
    picked: Any
    times: dict[str, Timed]
    #: Mean time of a CTA's tasks from the last product to the store, microseconds.
    stamped_epilogue_us: float


def with_fastest(row: WaterfallRow, pair: PairOnCard, builds: Builds) -> WaterfallRow:
    """The row with the fastest of its schedules, if there are several."""
    asked = {str(one): replace(row, schedule=one) for one in (row.schedule, *OTHERS.get(row.name, ()))}
    if len(asked) == 1:
        return row
    kernels = builds.make_all({text: Build(row=one) for text, one in asked.items()})
    times = pair.times({text: pair.graph(kernel) for text, kernel in kernels.items()}, 7)
    print(row.name, {text: round(one.us, 2) for text, one in times.items()}, flush=True)
    return asked[min(times, key=lambda text: times[text].us)]


def timed(row: WaterfallRow, builds: Builds) -> Taken:
    """Times and stamps of a row."""
    with pair_on_card(row, builds.gpu.arch) as pair:
        row = with_fastest(row, pair, builds)
        asked = {name: Build(row=row, patches=patches) for name, patches in {OURS: (), **LEFT_OUT}.items()}
        kernels = builds.make_all({**asked, "traced": Build(row=row, traced=True)})
        traced = kernels.pop("traced")
        graphs = {name: pair.graph(kernel, checked=name == OURS) for name, kernel in kernels.items()}
        graphs = {LIBRARY: pair.on_card.library_graph, **graphs, **library_parts(pair, row)}
        times = pair.times(graphs)
        spans, _ = pair.stamps(traced)
        return Taken(row=row, picked=pair.on_card.picked, times=times, stamped_epilogue_us=stamped_epilogue_us(spans))


def library_parts(pair: PairOnCard, row: WaterfallRow) -> dict[str, Any]:
    """Graphs of the library's launches without work, and of its products without the kernel after a gated one."""
    import cupy

    from tuner.ops.gemm.card.library import LibraryRunner

    timer, num_launches = pair.on_card.timer, len(row.workload.tile_ops) + any(op.gated for op in row.workload.tile_ops)

    class Empty:
        def enqueue(self, ops: Any, stream: int) -> None:
            for _ in range(num_launches):
                timer._delay((1,), (1,), (cupy.int64(0),))

    class Nothing:
        def enqueue(self, *_: Any) -> None:
            """Enqueues no kernel after a product."""

    parts = {_EMPTY: pair.captured(Empty())}
    if num_launches > len(row.workload.tile_ops):
        library = pair.on_card.library
        assert isinstance(library, LibraryRunner)
        finish, library._parts = library._parts, Nothing()  # type: ignore[assignment]
        parts[_WITHOUT_FINISH] = pair.captured(library)
        library._parts = finish
    return parts


def counted(taken: Taken, builds: Builds) -> dict[str, dict[str, float]]:
    """Counters of the library's graph and of ours, of one run each."""
    with pair_on_card(taken.row, builds.gpu.arch, taken.picked) as pair:
        graphs = {LIBRARY: pair.on_card.library_graph, OURS: pair.graph(builds.make(Build(row=taken.row)))}
        return {side: pair.counters(graph) for side, graph in graphs.items()}


def figures_of(taken: Taken, side: str, counters: dict[str, float]) -> Figures:
    """The figures for the bars of one side."""
    times = taken.times
    if side == OURS:
        launches_us, epilogue = times["nothing"].us, taken.stamped_epilogue_us
    else:
        launches_us = times[_EMPTY].us
        without = times.get(_WITHOUT_FINISH)
        epilogue = times[LIBRARY].us - without.us if without else 0.0
    return Figures(
        time_us=times[side].us,
        launches_us=launches_us,
        epilogue_us=epilogue,
        clock_mhz=times[side].clock_mhz,
        counted_clock_mhz=counters["sm__cycles_elapsed.avg.per_second"] / 1e6,
        active_cycles=counters["sm__cycles_active.max"],
        most_tensor_cycles=counters["sm__pipe_tensor_cycles_active.max"] / TENSOR_CORES,
        mean_tensor_cycles=counters["sm__pipe_tensor_cycles_active.avg"] / TENSOR_CORES,
        needed_share=taken.row.workload.num_flops / counters["sm__ops_path_tensor_op_hgmma_src_fp16.sum"],
    )


def report_row(taken: Taken, side: str, counters: dict[str, float], target_id: str) -> Json:
    """One side of a row."""
    time_us, rates = taken.times[side].us, rates_of(target_id)
    row: Json = {"row": taken.row.name, "side": side, "time_us": round(time_us, 3)}
    if side == OURS:
        row |= {"kind": str(taken.row.plan_kind), "schedule": str(taken.row.schedule)}
        row["stamped_epilogue_us"] = round(taken.stamped_epilogue_us, 3)
        row["left_out_us"] = {name: round(taken.times[name].us, 3) for name in LEFT_OUT}
    if rates:
        row["floor_us"] = round(reference_us(taken.row.workload, rates), 3)
    try:
        figures = figures_of(taken, side, counters)
        bars = waterfall_of(figures)
    except (KeyError, ValueError) as error:
        return row | {"holds": False, "reason": str(error), "counters": counters}
    row |= {
        "bars_us": {f"{name}_us": round(us, 3) for name, us in bars.bars_us.items()},
        "sum_us": round(bars.sum_us, 3),
    }
    row |= {"off_by": round(bars.off_by(time_us), 4), "holds": bars.holds(time_us), "figures": asdict(figures)}
    return row | {"counters": counters}


def main() -> None:
    """Measures the rows of the command line."""
    options = parser_of(__doc__, "row", "out", seconds=240.0).parse_args()
    rows, taken = list[Json](), list[Taken]()
    with open_builds() as builds:
        for row in in_time(called(ROWS, options.row), options.seconds):
            taken.append(timed(row, builds))
            print(row.name, {name: round(one.us, 2) for name, one in taken[-1].times.items()}, flush=True)
        for one in taken:
            for side, counters in counted(one, builds).items():
                rows.append(report_row(one, side, counters, builds.target_id))
                write_report(options.out or results_file(builds.target_id, "waterfall"), rows, builds.machine)
            gc.collect()
            for printed in rows[-2:]:
                print({key: value for key, value in printed.items() if key != "counters"}, flush=True)


if __name__ == "__main__":
    main()
