"""PyTorch's own calls compared with the library, as a cross-check: `torch_us` in the rows of the pair results.

python -m benchmarks.pairs.torch_check [--suite decode-plain] [--row m16] [--rounds 10]

Neither depends on our kernels, so the rows may be of any commit. Each row gets `torch_us`; the library's time in the
same rounds, `torch_library_us`; and `torch_run`, the origin of both. If PyTorch is not available, `torch_us` is
null and `torch_reason` has the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, origin, results_file, write_merged
from benchmarks.common.rows import SUITES, Row, choose_rows
from benchmarks.common.workbench import BUILD_CACHE, Workbench, open_workbench
from benchmarks.pairs.results import name_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.core.trial.stats import median
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work

#: Rounds; there is only one process.
NUM_ROUNDS = 10


def check_rows(bench: Workbench, rows: Sequence[Row], path: Path, num_rounds: int = NUM_ROUNDS) -> None:
    """Adds PyTorch's time to each of `rows` that the results file has, and writes the file after each."""
    report = json.loads(path.read_text())
    measured = {name_of(row): row for row in report["rows"]}
    machine = machine_of(bench.evaluator.environment())
    for row in rows:
        if row.name in measured:
            figures = torch_figures(bench, row, num_rounds)
            measured[row.name] |= {**figures, "torch_run": origin(machine)}
            print(f"{row.name}: {figures}", flush=True)
            write_merged(report, path)


def torch_figures(bench: Workbench, row: Row, num_rounds: int) -> dict[str, Any]:
    """The median times of PyTorch and the library in the same rounds; null with the reason if there are none."""
    if not isinstance(bench.evaluator, GpuSupervisor):
        return {"torch_us": None, "torch_library_us": None, "torch_reason": "a simulated GPU has no PyTorch"}
    library = Work(plan_kind=PlanKind.LIBRARY)
    answer = bench.evaluator.time_together(row.problem, (library,), num_rounds, (TorchCalls.EAGER,))
    (torch,) = answer.others
    times_us = (torch.times_us, answer.times_us[0]) if torch.times_us else (None, None)
    torch_us, library_us = (None if one is None else round(median(one), 3) for one in times_us)
    return {"torch_us": torch_us, "torch_library_us": library_us, "torch_reason": torch.reason}


def main() -> None:
    """Checks the rows that the command line selects."""
    parser = parser_of(__doc__, "row", "gpu", "out", rounds=NUM_ROUNDS)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES))
    arguments = parser.parse_args()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.out or results_file(bench.evaluator.target.id, "pairs")
        check_rows(bench, choose_rows(arguments.suite, arguments.row), path, arguments.rounds)


if __name__ == "__main__":
    main()
