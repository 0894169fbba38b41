"""Traffic according to six models and the simulator, compared with counters: benchmarks/results/<gpu>/traffic.json.

python -m benchmarks.traffic.measure [--gpu auto] [--out benchmarks/results/<gpu>/traffic.json]

Six pairs, each in row-major order and in the best order that `benchmarks.orders` found for its tiling (the schedules
are read from its results). Each is counted in one cold run. It takes about half a minute on an H200.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import Workbench, open_workbench
from benchmarks.orders.cases import CASES, Case
from benchmarks.orders.measure import counted, fused, name_of
from benchmarks.traffic.models import Traffic, chimera, maestro, optimus, pebbles, tileflow, welder
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.schedule import Schedule

Row = dict[str, Any]

#: The pairs, in the order of the page.
PAIRS = (
    *(f"llama3-8b/wgmma/m{m}" for m in (64, 512, 2048, 4096)),
    *(f"llama3-8b-swiglu/wgmma/m{m}" for m in (64, 512)),
)
#: Names of the pairs in `benchmarks.orders`.
ORDERS = ("row_major", "best")
ORDERINGS = Path("benchmarks/results/h200/orders.json")
#: Bytes that the SMs received by TMA, as all operands of `wgmma` do; and sectors that the L2 read for them, which are
#: fewer if the L2 answers several SMs at once.
SM_BYTES, L2_SECTORS = "l1tex__m_xbar2l1tex_read_bytes_pipe_tma.sum", "lts__t_sectors_op_read.sum"
SECTOR_BYTES = 32
#: The counters of a simulated card, and of a real one.
SIMULATED_METRICS = (DRAM_READ_BYTES, DRAM_WRITE_BYTES)
METRICS = (*SIMULATED_METRICS, SM_BYTES, L2_SECTORS)


def forecast(case: Case, schedule: Schedule, gpu: Gpu) -> dict[str, Row]:
    """By model, bytes at the two boundaries."""
    (plan,) = plans_for(case.workload, gpu, fused(schedule))
    timeline = simulate(plan)
    found = {
        "pebbles": pebbles(case.workload, gpu),
        "chimera": chimera(case.workload, gpu),
        "welder": welder(case.workload, gpu),
        "optimus": optimus(case.workload, gpu),
        "maestro": maestro(plan),
        "tileflow": tileflow(plan, gpu),
        "simulator": Traffic(dram_bytes=timeline.dram_bytes, l2_bytes=timeline.link_bytes),
    }
    return {name: {"dram_bytes": one.dram_bytes, "l2_bytes": one.l2_bytes} for name, one in found.items()}


def rows_of(bench: Workbench, orderings: Sequence[Row]) -> list[Row]:
    """A row for each pair and order.

    Raises:
        WorkerError: nothing can be counted.
    """
    cases = [next(case for case in CASES if case.name == name) for name in PAIRS]
    found = {name_of(row): row for row in orderings}
    schedules = [[Schedule.from_json(found[case.name][order]["schedule"]) for order in ORDERS] for case in cases]
    metrics = SIMULATED_METRICS if bench.evaluator.target.simulated else METRICS
    candidates = [[fused(schedule) for schedule in some] for some in schedules]
    reports = counted(bench, [case.problem for case in cases], candidates, metrics)
    rows = []
    for case, some, answers in zip(cases, schedules, reports, strict=True):
        for order, schedule, report in zip(ORDERS, some, answers, strict=True):
            counters = {counter.name: counter.value for counter in report.counters}
            rows.append(
                {
                    "pair": case.pair,
                    "m": case.m,
                    "order": order,
                    "ordering": str(schedule.ordering),
                    "tiling": str(schedule.tiling),
                    "models": forecast(case, schedule, bench.gpu),
                    "counters": {name: counters.get(name) for name in METRICS},
                    **({"no_counters": report.reason} if report.reason else {}),
                }
            )
            print(f"{case.name} {order}: {rows[-1]['counters']}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all pairs."""
    options = parser_of(__doc__, "gpu", "out").parse_args(arguments)
    orderings = json.loads(ORDERINGS.read_text())["rows"]
    with tempfile.TemporaryDirectory() as cache, open_workbench(options.gpu, Path(cache)) as bench:
        rows = rows_of(bench, orderings)
        machine = machine_of(bench.evaluator.environment()) | {"complete": True}
        write_report(options.out or results_file(bench.evaluator.target.id, "traffic"), rows, machine)


if __name__ == "__main__":
    main()
