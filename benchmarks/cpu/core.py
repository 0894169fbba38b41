"""Host costs of making, proving and simulating a plan, and of counting a space.

python -m benchmarks.cpu.core [--chains] [--out FILE]

With `--chains`, only plans of four ops are proven, measured in CPU time, so the machine need not be idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.chains.rows import Layer, block
from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, check_row, write_report
from tuner.core.legal.legality import check_schedule, estimated_resources
from tuner.core.legal.ordering_rules import position_problem
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan, Words
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.resources import Resources
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    WaitPosition,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.ordering_values import SYNCS
from tuner.core.space.space import Space
from tuner.ops.gemm.pairs import ffn_pair

GPU = CATALOGUE["h200"]
REPEATS = 15


def median_ms(call: Callable[[], object], clock_s: Callable[[], float] = time.perf_counter) -> float:
    """Median time of a call, milliseconds; by default wall time."""
    times = []
    for _ in range(REPEATS):
        begin_s = clock_s()
        call()
        times.append(1e3 * (clock_s() - begin_s))
    return round(median(times), 2)


def _verify(words: Words, graph: TileGraph, resources: Resources) -> None:
    """Verifies a plan from its words, as before a launch."""
    verify(Plan.from_words(words), graph, resources, GPU)


def graph_of(m: int, tile_m: int, tile_n: int) -> TileGraph:
    """The FFN pair 4096 -> 14336 -> 4096 divided into tiles."""
    workload = ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096)
    tile = Tile(m=tile_m, n=tile_n, k=64)
    return tile_graph(workload, Tiling(tiles=(tile, tile), num_stages=3, num_warps=4))


def verify_rows() -> list[dict[str, Any]]:
    """Times making and proving a plan of over 20,000 tasks, by granularity, wait position and assignment."""
    graph = graph_of(1152, 32, 32)
    resources = estimated_resources(graph.workload, graph.tiling)
    rows = []
    for (granularity, sync_width), position, assignment in product(SYNCS, WaitPosition, ASSIGNMENTS):
        if position_problem(graph, granularity, sync_width, position) is not None:
            continue
        # With these granularities, the producer's rows must be complete.
        whole = granularity in (Granularity.BATCH, Granularity.BARRIER)
        ordering = Ordering(
            rasters=(Raster(kind=RasterKind.GROUPED, width=4), Raster(kind=RasterKind.PANEL, width=4)),
            interleave=Interleave() if whole else Interleave(kind=InterleaveKind.BANDS, rows=8),
            granularity=granularity,
            sync_width=sync_width,
            assignment=assignment,
            wait_position=position,
        )
        check_schedule(graph.workload, GPU, Schedule.of(tiling=graph.tiling, ordering=ordering))
        made = make_plan(graph, ordering, GPU)
        words = made.words
        case = {"granularity": granularity, "sync_width": sync_width, "wait_position": position}
        case["assignment"] = assignment
        size = {"tasks": graph.num_tasks, "edges": graph.num_edges(made.tasks), "signals": made.num_signals}
        proven = median_ms(partial(_verify, words, graph, resources))
        drawn = median_ms(partial(make_plan, graph, ordering, GPU))
        rows.append({"check": "verify_ms", **case, **size, "value": proven})
        rows.append({"check": "make_plan_ms", **case, **size, "value": drawn})
    return rows


#: Blocks of four ops that are divided into over 20,000 tasks, with their tiles and the parts of each: wide ones at few
#: rows with whole tiles and with parts, and one of many rows.
CHAINS = {
    "wide": (block(Layer(heads=16384, width=16384, hidden=57344, qkv=73728, k=0), 8), [(16, 8, 64)] * 4, ()),
    "parts": (block(Layer(heads=16384, width=16384, hidden=32768, qkv=16384, k=0), 8), [(16, 8, 64)] * 4, (2, 2, 2, 2)),
    "many rows": (
        block(Layer(heads=4096, width=4096, hidden=8192, qkv=4096, k=0), 1024),
        [(16, 64, 64), (16, 48, 64), (16, 64, 64), (16, 56, 64)],
        (),
    ),
}
#: Maximum time for the proof of one such plan, milliseconds.
CHAIN_LIMIT_MS = 120.0


def verify_chain_rows() -> list[dict[str, Any]]:
    """Times the proof of a plan of four ops, with residuals and norms between them, by granularity and assignment, in
    band or not; in CPU time, so that waiting does not count."""
    rows = []
    for (name, (workload, tiles, parts)), granularity, assignment, in_band in product(
        CHAINS.items(), (Granularity.ROW, Granularity.TILE), ASSIGNMENTS, (False, True)
    ):
        tiling = Tiling(
            engine=Engine.WGMMA,
            tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles),
            num_stages=3,
            num_warps=4,
            input_stages=3,
            split_k=parts,
            in_band=in_band,
        )
        ordering = Ordering(rasters=(Raster(),) * len(tiles), granularity=granularity, assignment=assignment)
        graph, resources = tile_graph(workload, tiling), estimated_resources(workload, tiling)
        made = make_plan(graph, ordering, GPU)
        case = {"chain": name, "granularity": granularity, "assignment": assignment, "in_band": in_band}
        size = {"tasks": made.num_tasks, "signals": made.num_signals}
        proven = median_ms(partial(_verify, made.words, graph, resources), time.process_time)
        rows.append({"check": "verify_chain_ms", **case, **size, "value": proven})
    return rows


def simulate_rows() -> list[dict[str, Any]]:
    """Times the simulation of plans of about 1,000 and 10,000 tasks."""
    rows = []
    for m, tile_m, tile_n in ((1024, 128, 128), (1088, 64, 32)):
        graph = graph_of(m, tile_m, tile_n)
        resources = estimated_resources(graph.workload, graph.tiling)
        for assignment in ASSIGNMENTS:
            ordering = Ordering(rasters=(Raster(), Raster()), assignment=assignment)
            plan = make_plan(graph, ordering, GPU)
            proven = verify(plan, graph, resources, GPU)
            value = median_ms(partial(simulate, proven))
            rows.append({"check": "simulate_ms", "assignment": assignment, "tasks": graph.num_tasks, "value": value})
    return rows


def space_rows() -> list[dict[str, Any]]:
    """Times the counting of spaces; each time a new one, since a space caches its tilings."""
    rows = []
    for m in (16, 64, 512, 1024):
        workload = ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096)
        space = Space(workload, GPU)
        size = {"m": m, "tilings": len(space.tilings), "schedules": space.num_schedules}
        begin_s = time.perf_counter()
        _ = Space(workload, GPU).num_schedules
        rows.append({"check": "count_space_ms", **size, "value": round(1e3 * (time.perf_counter() - begin_s), 1)})
    return rows


def report_rows() -> list[dict[str, Any]]:
    """All rows of pairs, then the slowest of each check."""
    rows = verify_rows() + simulate_rows() + space_rows()
    slowest = {name: max(row["value"] for row in rows if row["check"] == name) for name in ("verify_ms", "simulate_ms")}
    rows.append({"check": "verify_20k_ms", "value": slowest["verify_ms"]})
    return [*rows, {"check": "simulate_10k_ms", "value": slowest["simulate_ms"]}]


def chain_rows() -> list[dict[str, Any]]:
    """Rows for proofs of chains."""
    rows = verify_chain_rows()
    return [*rows, check_row("verify_chain_20k_ms", max(row["value"] for row in rows), CHAIN_LIMIT_MS)]


def main() -> None:
    """Measures, prints and writes the results file."""
    parser = parser_of(__doc__, "out")
    parser.add_argument("--chains", action="store_true", help="proofs of four ops, to core_chains.json")
    arguments = parser.parse_args()
    rows = chain_rows() if arguments.chains else report_rows()
    for row in rows:
        print(
            "  ".join(f"{key}={value:,}" if isinstance(value, int) else f"{key}={value}" for key, value in row.items())
        )
    name = "core_chains" if arguments.chains else "core"
    write_report(arguments.out or Path(f"benchmarks/results/cpu/{name}.json"), rows, NO_GPU)


if __name__ == "__main__":
    main()
