"""Our kernels for pairs of convolutions, by jobs of the service: benchmarks/results/<gpu>/conv.json.

python -m benchmarks.conv.search [--row r50-s1-1x1-3x3/b1 ...] [--trials 60] [--seconds 100] [--out FILE]
python -m benchmarks.conv.search --ship [--gpu h200]    adds the file's schedules to tuner/winners/<gpu>.json

A row is a job compared with cuDNN's best plans. Its library is the fastest in conv_library.json of the same folder, if
that has the row; the targets are relative to it. Existing rows of this commit and card are skipped, and each row is
written at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.finals import figures_of
from benchmarks.common.found import Found
from benchmarks.common.jobs import Ended, open_jobs, run_jobs, spec_of
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from benchmarks.common.winners import ship_report
from benchmarks.conv.rows import Row, rows
from tuner.core.problem.workload import Workload
from tuner.ops.conv.asked import ConvPair, Filters
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

Json = dict[str, Any]


def workload_of(row: Row) -> Workload:
    """The workload, with a bias and ReLU after each convolution."""
    first, second = (Filters(filters=layer.filters, kernel=layer.kernel, stride=1) for layer in row.pair.layers)
    size, channels = row.pair.size, row.pair.first.channels
    pair = ConvPair(images=row.batch, height=size, width=size, channels=channels, first=first, second=second)
    return pair.to_workload()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rows until the time limit."""
    parser = parser_of(__doc__, "gpu", "row", "out", "trials", seconds=100)
    parser.add_argument("--ship", action="store_true")
    options = parser.parse_args(arguments)
    if options.ship:
        ship("h200" if options.gpu == "auto" else options.gpu, FOLDER)
        return
    with open_jobs(options.gpu, winners=ShippedWinners()) as jobs:
        found = Found(jobs, options.out or results_file(jobs.target_id, "conv"))
        said = ("kind_us", "verdict", "verdict_speedup", "library_us", "over_library", "over_floor", "rel_error")
        asked = [(row, workload_of(row)) for row in found.missing(rows(), options.row)]
        specs = [(row, spec_of(workload, jobs.target_id, options.trials)) for row, workload in asked]
        run_jobs(jobs, specs, lambda row, end: found.add(_line_of(row, end, found.path), said), seconds=options.seconds)


def ship(target_id: str, folder: Path) -> None:
    """Adds the fastest schedule of each plan kind of each row to the winners that ship with the program."""
    ship_report("conv", target_id, folder, "conv", {row.name: workload_of(row) for row in rows()})


def _line_of(row: Row, ended: Ended, out: Path) -> Json:
    """The row's figures; ratios to the floor and to the library are for our fastest kernel."""
    figures = figures_of(ended)
    best_us = min(us for kind, us in figures["kind_us"].items() if kind != "library")
    found = {"row": row.name, "pair": row.pair.name, "batch": row.batch, **figures}
    found |= {"floor_us": round(row.floor_us, 3), "over_floor": round(best_us / row.floor_us, 3)}
    table = out.with_name("conv_library.json")
    lines = json.loads(table.read_text())["rows"] if table.exists() else []
    timed = [one for one in lines if (one["pair"], one["batch"]) == (row.pair.name, row.batch) and "cold_us" in one]
    if timed := [one for one in timed if not one["residual"]]:
        best = min(timed, key=lambda one: float(one["cold_us"]))
        found |= {"library": best["library"], "library_us": best["cold_us"]}
        found["over_library"] = round(best["cold_us"] / best_us, 3)
    return found


if __name__ == "__main__":
    main()
