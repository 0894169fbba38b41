"""How well the simulator ranks schedules of pairs of convolutions: benchmarks/results/<gpu>/conv_forecasts.json.

python -m benchmarks.conv.forecasts [--row r50-s2-3x3-1x1/b1 ...] [--count 75] [--seconds 150] [--out FILE]

For each row, `--count` fused schedules are measured, evenly spread over its draw (benchmarks/simulator/draw.py), each
after a check of its numbers, alternating between the rows. What an earlier run wrote to the file is not measured again.
Each of `rows` has the rank correlation (Spearman) of forecast and measured times (target: at least 0.85), and the
regret: how much slower the best of the ten best forecasts is than the best of all. `schedules` has the measurements so
far; the file is written after each turn.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Workbench, open_workbench
from benchmarks.conv.rows import Row, rows
from benchmarks.conv.search import workload_of
from benchmarks.simulator.data import evenly, fused
from benchmarks.simulator.draw import Drawn, draw
from tuner.core.insight.forecast_quality import judge_forecasts
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.schedule.one_line import read_line
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Measured

Json = dict[str, Any]

DEFAULT_ROWS = ("r50-s2-3x3-1x1/b1", "r38-3x3-3x3-256/b4")
SPEARMAN_BAR = 0.85
#: Number of schedules of each row that are prepared ahead.
NUM_AHEAD = 16


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures schedules of all rows in turn, until the time limit."""
    parser = parser_of(__doc__, "gpu", "row", "out", seconds=150)
    parser.add_argument("--count", type=int, default=75, help="schedules of each row")
    options = parser.parse_args(arguments)
    end_s = time.monotonic() + options.seconds
    with open_workbench(options.gpu, BUILD_CACHE) as bench:
        machine = machine_of(bench.evaluator.environment())
        out = options.out or results_file(bench.evaluator.target.id, "conv_forecasts")
        asked, before = called(rows(), options.row or DEFAULT_ROWS), measured_before(out, machine["gpu"])
        known = {row.name: [line for line in before if line["row"] == row.name] for row in asked}
        found = [forecast_anew(row, line, bench) for row in asked for line in known[row.name]]
        for turn in zip_longest(*(measured(row, bench, options.count, known[row.name]) for row in asked)):
            found += [line for line in turn if line]
            judged = [judge(row.name, [line for line in found if line["row"] == row.name]) for row in asked]
            write_report(out, judged, machine, schedules=found)
            if time.monotonic() > end_s:
                break
        for row in asked:
            print(judge(row.name, [line for line in found if line["row"] == row.name]), flush=True)


def measured_before(out: Path, gpu: str) -> list[Json]:
    """The schedules that earlier runs measured on this model of card."""
    before = json.loads(out.read_text()) if out.exists() else {}
    return list(before["schedules"]) if before and before["meta"]["gpu"] == gpu else []


def forecast_anew(row: Row, line: Json, bench: Workbench) -> Json:
    """An earlier measurement, with today's forecast."""
    schedule = fused(read_line(line["schedule"]))
    return line | {"forecast_us": round(forecast_us(workload_of(row), bench.gpu, schedule), 3)}


def measured(row: Row, bench: Workbench, count: int, known: Sequence[Json]) -> Iterator[Json]:
    """Yields a line for each schedule that is not known yet, measured when it is requested; refused or wrong ones have
    a reason. The order is random, so that the first ones are a representative sample."""
    workload = workload_of(row)
    problem = Problem(workload=workload, objective=Objective(l2=CacheState.COLD, regime=Regime.BURST), seed=1)
    skipped = {line["schedule"] for line in known}
    wanted = [one for one in evenly(draw(workload, bench.gpu, row.name), count) if str(one.schedule) not in skipped]
    random.Random(row.name).shuffle(wanted)
    wanted = wanted[: max(0, count - len(known))]
    begun = {one.schedule: bench.begin(problem, fused(one.schedule)) for one in wanted[:NUM_AHEAD]}
    behind = iter(wanted[NUM_AHEAD:])
    for one in wanted:
        for ahead in islice(behind, 1):
            begun[ahead.schedule] = bench.begin(problem, fused(ahead.schedule))
        outcome = bench.outcome(problem, fused(one.schedule), begun.pop(one.schedule).result(), None)
        line = _line(row, one) | {"forecast_us": round(forecast_us(workload, bench.gpu, fused(one.schedule)), 3)}
        measured_us = (
            {"us": round(outcome.time_us, 3)} if isinstance(outcome, Measured) else {"failed": str(outcome)[:200]}
        )
        yield line | measured_us


def _line(row: Row, one: Drawn) -> Json:
    return {"row": row.name, "stratum": one.stratum, "schedule": str(one.schedule)}


def judge(row: str, lines: Sequence[Json]) -> Json:
    """The measurements of a row, and how well its forecasts rank."""
    good = [line for line in lines if "us" in line]
    found = judge_forecasts((line["forecast_us"], line["us"]) for line in good)
    judged = {"spearman": found.rank_correlation, "bar": SPEARMAN_BAR, "regret": found.regret}
    rounded = {name: value and round(value, 3) for name, value in judged.items()}
    return {"row": row, "schedules": len(good), "failed": len(lines) - len(good), **rounded, "reason": found.reason}


if __name__ == "__main__":
    main()
