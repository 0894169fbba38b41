"""What it is worth that the compiler knows a warp's lanes to have one role: benchmarks/results/<gpu>/equal_lanes.json.

python -m benchmarks.waterfall.lanes [--row decode-swiglu/llama3-8b/m16] [--seconds 100] [--out FILE]

The fused schedule of each pair of pairs.json is built so that all lanes have the role of the first (*equal*), and so
that each computes its own (*own*). The product has the former for one math warpgroup and the latter for several. All
builds of a row are timed in the same rounds and have the same results. It takes about 3 seconds per row on 16 cores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from benchmarks.common.rows import choose_rows
from benchmarks.waterfall.on_card import Build, Builds, measure_rows, pair_on_card
from benchmarks.waterfall.patches import Patch
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind

KINDS = {"fused": PlanKind.FUSED, "early": PlanKind.FUSED_PDL}
_PRODUCT = "if constexpr (kNumMathGroups == 1) warp = uniform(warp);"
EQUAL = (Patch(before=_PRODUCT, after="warp = uniform(warp);"),)
OWN = (Patch(before=_PRODUCT, after=""),)


def asked_of(builds: Builds, names: Sequence[str]) -> list[WaterfallRow]:
    """The pairs with their fused schedules."""
    pairs = json.loads(results_file(builds.target_id, "pairs").read_text(encoding="utf-8"))["rows"]
    lines = {f"{one['suite']}/{one['pair']}/m{one['m']}": one["schedule"] for one in pairs if one.get("schedule")}
    rows = [
        WaterfallRow(name=row.name, workload=row.problem.workload, schedule=read_line(lines[row.name]))
        for row in choose_rows([], [])
        if row.name in lines
    ]
    return called(rows, names)


def measured(row: WaterfallRow, builds: Builds) -> dict[str, Any]:
    """Both ways' times for each way to launch, and how much faster equal lanes are."""
    asked = dict[str, Build]()
    for name, kind in KINDS.items():
        one = row.launched(kind)
        asked |= {name: Build(row=one, patches=EQUAL), f"{name}, own": Build(row=one, patches=OWN)}
    kernels = builds.make_all(asked)
    with pair_on_card(row, builds.gpu.arch) as pair:
        graphs = {name: pair.graph(kernel) for name, kernel in kernels.items()}
        times = pair.times({"library": pair.on_card.library_graph, **graphs})
    return {
        "schedule": str(row.schedule),
        "times_us": {name: round(one.us, 3) for name, one in times.items()},
        "gain": {name: round(times[f"{name}, own"].us / times[name].us, 4) for name in KINDS},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures rows until the time limit."""
    options = parser_of(__doc__, "row", "out", seconds=100).parse_args(arguments)
    measure_rows("equal_lanes", options, lambda builds: asked_of(builds, options.row), measured)


if __name__ == "__main__":
    main()
