"""Our kernels for pairs of convolutions, by jobs of the service: benchmarks/results/<gpu>/conv.json.

python -m benchmarks.conv.search [--row r50-s1-1x1-3x3/b1 ...] [--trials 60] [--seconds 100] [--out FILE]

A row is a job compared with cuDNN's best plans. Its library is the fastest in conv_library.json of the same folder, if
that has the row: the bars are relative to it. Existing rows of this commit and card are skipped, and each row is
written at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.finals import figures_of
from benchmarks.common.jobs import Ended, InTurn, open_jobs
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.workbench import message_of
from benchmarks.conv.rows import Row, rows
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import Workload
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.ops.conv.asked import ConvPair, Filters
from tuner.winners import ShippedWinners

Json = dict[str, Any]

_SECONDS_PER_JOB = 120.0


def workload_of(row: Row) -> Workload:
    """The workload, with a bias and ReLU after each convolution."""
    first, second = (Filters(filters=layer.filters, kernel=layer.kernel, stride=1) for layer in row.pair.layers)
    size, channels = row.pair.size, row.pair.first.channels
    pair = ConvPair(images=row.batch, height=size, width=size, channels=channels, first=first, second=second)
    return pair.to_workload()


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    parser.add_argument("--row", action="append", help="pair/b and the batch, or how it begins; all without it")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    with open_jobs(options.gpu, winners=ShippedWinners()) as jobs:
        out, machine = options.out or results_file(jobs.target_id, "conv"), machine_of(jobs.environment)
        done = rows_of_this_build(out, machine)
        kept = {one["row"] for one in done}
        asked = [row for row in called(rows(), options.row or ()) if row.name not in kept]
        turns = InTurn(jobs, [_spec_of(row, jobs.target_id, options.trials) for row in asked])
        for number, row in enumerate(asked):
            if time.monotonic() - begin > options.seconds:
                break
            try:
                done.append(_line_of(row, turns.end(number), out))
            except Exception as error:  # an error of one row; the others may succeed
                print(f"{row.name}: {message_of(error)} FAILED", flush=True)
                continue
            write_report(out, done, machine)
            said = ("kind_us", "verdict", "verdict_speedup", "library_us", "over_library", "over_floor", "rel_error")
            print(row.name, json.dumps({name: done[-1].get(name) for name in said}), flush=True)


def _spec_of(row: Row, target_id: str, trials: int) -> JobSpec:
    return JobSpec(
        workload=workload_of(row),
        target_id=target_id,
        objective=Objective(regime=Regime.BURST),
        budget=Budget(trials=trials, seconds=_SECONDS_PER_JOB),
        seed=0,
    )


def _line_of(row: Row, ended: Ended, out: Path) -> Json:
    """The row's figures; those over the floor and the library are for our fastest kernel."""
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
