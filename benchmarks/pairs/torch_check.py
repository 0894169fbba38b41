"""PyTorch's own calls compared with the library, as a cross-check: `torch_us` in the rows of the pair results.

python -m benchmarks.pairs.torch_check [--suite decode-plain] [--row m16] [--rounds 10]

Uses the rows that this commit and kernel have measured. PyTorch and the library are timed in the same rounds. If
PyTorch is not available, `torch_us` is null and `torch_reason` has the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, results_file
from benchmarks.common.rows import SUITES, Row, choose_rows
from benchmarks.common.workbench import BUILD_CACHE, Workbench, open_workbench
from benchmarks.pairs.results import Results
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.core.trial.stats import median
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work

#: Rounds; there is only one process.
NUM_ROUNDS = 10


def check_rows(bench: Workbench, rows: Sequence[Row], results: Results, num_rounds: int = NUM_ROUNDS) -> None:
    """Adds PyTorch's time to each row that was measured."""
    for row in rows:
        measured = results.get(row.name)
        if measured is not None:
            figures = torch_figures(bench, row, num_rounds)
            results.put(row.name, {**measured, **figures})
            print(f"{row.name}: {figures}", flush=True)


def torch_figures(bench: Workbench, row: Row, num_rounds: int) -> dict[str, Any]:
    """The median time; null with the reason if there is none."""
    if not isinstance(bench.evaluator, GpuSupervisor):
        return {"torch_us": None, "torch_reason": "a simulated GPU has no PyTorch"}
    library = Work(plan_kind=PlanKind.LIBRARY)
    answer = bench.evaluator.time_together(row.problem, (library,), num_rounds, (TorchCalls.EAGER,))
    (torch,) = answer.others
    torch_us = round(median(torch.times_us), 3) if torch.times_us else None
    return {"torch_us": torch_us, "torch_reason": torch.reason}


def main() -> None:
    """Checks the rows that the command line selects."""
    parser = parser_of(__doc__, "row", "gpu", "out", rounds=NUM_ROUNDS)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES))
    arguments = parser.parse_args()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.out or results_file(bench.evaluator.target.id, "pairs")
        results = Results(path, machine_of(bench.evaluator.environment()))
        check_rows(bench, choose_rows(arguments.suite, arguments.row), results, arguments.rounds)


if __name__ == "__main__":
    main()
