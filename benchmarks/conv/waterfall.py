"""Where the time of a pair of convolutions goes: benchmarks/results/<gpu>/conv_waterfall.json.

python -m benchmarks.conv.waterfall [--row r50-s1-3x3-1x1/b1 ...] [--seconds 100] [--out FILE]

For each row of conv.json, its fastest schedule in one launch is timed: launched plainly and programmatically, and with
one thing left out at a time (`benchmarks.waterfall.patches`). `stamps_us` has the minimum, the median and the maximum
time after the start of the launch at which tasks of each op were taken, had their inputs signalled, loaded, multiplied
and stored. It takes about 6 seconds per row on 16 cores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from benchmarks.conv.rows import Row, rows
from benchmarks.conv.search import workload_of
from benchmarks.waterfall.on_card import Build, Builds, measure_rows, pair_on_card
from benchmarks.waterfall.patches import LEFT_OUT
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.reports.inspection import TaskSpan

Json = dict[str, Any]

#: Programmatic launches (*early*) overlap with the previous launch.
EARLY, NOTHING = "early", "nothing"
#: The kernels whose results are right.
RIGHT = ("all", EARLY)
PHASES = ("taken", "ready", "loaded", "computed", "stored")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures rows until the time limit."""
    parser = parser_of(__doc__, "row", "out", seconds=100)
    parser.add_argument("--jobs", type=Path, help="the rows of jobs; default: the card's conv.json")
    options = parser.parse_args(arguments)

    def asked(builds: Builds) -> list[WaterfallRow]:
        return asked_of(options.jobs or results_file(builds.target_id, "conv"), options.row)

    measure_rows("conv_waterfall", options, asked, measured)


def asked_of(jobs: Path, names: Sequence[str]) -> list[WaterfallRow]:
    """The best fused schedule of each row that has a job."""
    by_name: dict[str, Row] = {row.name: row for row in rows()}
    lines = {one["row"]: one["schedules"] for one in json.loads(jobs.read_text())["rows"]}
    return [
        WaterfallRow(
            name=row.name,
            workload=workload_of(by_name[row.name]),
            schedule=read_line(lines[row.name].get("fused_pdl") or lines[row.name]["fused"]),
        )
        for row in called([by_name[name] for name in lines], names)
    ]


def measured(row: WaterfallRow, builds: Builds) -> Json:
    """Times of all ways to leave something out, and stamps."""
    has_parts = max(row.schedule.tiling.split_k, default=1) > 1
    asked = {"all": Build(row=row), EARLY: Build(row=row.launched(PlanKind.FUSED_PDL))}
    # If there are no steps, parts of tiles do not post.
    asked |= {name: Build(row=row, patches=LEFT_OUT[name]) for name in LEFT_OUT if not (has_parts and name == NOTHING)}
    if not has_parts:
        asked |= {f"{EARLY}, {NOTHING}": Build(row=row.launched(PlanKind.FUSED_PDL), patches=LEFT_OUT[NOTHING])}
    kernels = builds.make_all({**asked, "traced": Build(row=row, traced=True)})
    traced = kernels.pop("traced")
    with pair_on_card(row, builds.gpu.arch) as pair:
        graphs = {name: pair.graph(kernel, checked=name in RIGHT) for name, kernel in kernels.items()}
        times = pair.times({"library": pair.on_card.library_graph, **graphs})
        spans, _ = pair.stamps(traced)
    return {
        "schedule": str(row.schedule),
        "times_us": {name: round(one.us, 3) for name, one in times.items()},
        "stamps_us": stamps_of(spans),
    }


def stamps_of(spans: Sequence[TaskSpan]) -> dict[str, list[list[float]]]:
    """For each phase and op: minimum, median and maximum."""
    ops = sorted({span.op for span in spans})
    return {
        phase: [_three([getattr(one, f"{phase}_ns") for one in spans if one.op == op]) for op in ops]
        for phase in PHASES
    }


def _three(times_ns: list[int]) -> list[float]:
    in_order = sorted(times_ns)
    return [round(in_order[place] / 1e3, 2) for place in (0, len(in_order) // 2, -1)]


if __name__ == "__main__":
    main()
