"""Whether measurements can be trusted: the checks that docs/measuring.md lists, each with its target.

python -m benchmarks.trust.measuring [--gpu auto] [--quick] [--out benchmarks/results/<gpu>/measuring.json]

It takes about four minutes on an H200; no check begins after LIMIT_S. The file is written after every check; a check
that raises has failed. A simulated GPU runs the checks that only need an evaluator.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import library
from benchmarks.common.report import check_row, failed_row, machine_of, results_file, write_report
from benchmarks.common.setting import read_options, twin_of
from benchmarks.trust.faults import measure_faults
from benchmarks.trust.repeats import MIN_GAP_S, SHAPES, Run, draw_order, measure_all, overhead_row, repeat_rows
from tests.support.counting import apart, count_copy, count_works, num_mma_instructions
from tests.support.on_card import fused, problem, schedule
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation
from tuner.core.schedule.ordering import Assignment
from tuner.core.trial.evaluator import Evaluator, Problem
from tuner.core.trial.reports.inspection import CounterReport
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import CountAnswer
from tuner.workers.simulated.evaluator import SimulatedEvaluator
from tuner.workers.source.tools import tools_source

#: Seconds after which no check begins, since all must end within six minutes.
LIMIT_S = 330.0
#: Reads are counted on a copy larger than any L2, and writes on a copy so large that less than 1 % stays in the L2.
READ_COPY_BYTES, WRITE_COPY_BYTES = 2**28, 2**33
COPY_BAR = 0.01
TENSOR_METRIC = "sm__inst_executed_pipe_tensor.sum"
NUM_FAULT_TRIALS, NUM_QUICK_FAULT_TRIALS = 200, 30
#: Number of our candidates per pair in a quick run.
NUM_QUICK_CANDIDATES = 2

Row = dict[str, Any]


@dataclass(kw_only=True)
class Checks:
    """The rows so far, written to the file after every step."""

    out: Path
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    begin_s: float = field(default_factory=time.monotonic)

    def attempt(self, names: Sequence[str], measure: Callable[[], list[Row]]) -> None:
        """Adds the rows called `names`; a missing one becomes a failed row, with the reason."""
        elapsed_s = time.monotonic() - self.begin_s
        print(f"{elapsed_s:6.1f} s  {', '.join(names)}", flush=True)
        found: list[Row] = []
        reason = "no figure came"
        if elapsed_s > LIMIT_S:
            reason = f"it was not started, since {elapsed_s:.0f} s had passed"
        else:
            try:
                found = measure()
            except Exception as error:
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}"
        by_name = {row["check"]: row for row in found}
        for name in names:
            row = by_name.get(name) or failed_row(name, reason)
            print("        " + "  ".join(f"{key}={row[key]}" for key in ("check", "value", "bar", "holds")), flush=True)
            self.rows.append(row)
        write_report(self.out, self.rows, self.machine)


class Repeats:
    """Two passes over the same candidates, with other checks in between."""

    def __init__(self, evaluator: Evaluator, *, quick: bool, min_gap_s: float) -> None:
        self._evaluator = evaluator
        self._count = NUM_QUICK_CANDIDATES if quick else None
        self._min_gap_s = min_gap_s
        self._first: list[Run] = []
        self._again: list[Run] = []

    def first(self) -> list[Row]:
        """The first pass, which also measures a trial's cost apart from its build and its kernels."""
        self._first = measure_all(self._evaluator, draw_order(SHAPES, 0, self._count))
        return [overhead_row(self._first)]

    def again(self) -> list[Row]:
        """The second pass, with pairs and candidates in a different order.

        Raises:
            ValueError: there was no first pass.
        """
        if not self._first:
            raise ValueError("the first pass did not finish")
        wait_s = self._min_gap_s - (time.monotonic() - max(run.began_s for run in self._first))
        time.sleep(max(0.0, wait_s))
        self._again = measure_all(self._evaluator, draw_order(SHAPES[::-1], 1, self._count))
        return repeat_rows(self._first, self._again)


def counted(report: CounterReport, metric: str) -> float:
    """The value of one counter.

    Raises:
        ValueError: the counter was not read; the message says why.
    """
    found = {counter.name: counter.value for counter in report.counters}
    if metric not in found:
        raise ValueError(f"{metric} was not counted: {report.reason or report.absent.get(metric, '')}")
    return found[metric]


def exactness_row(check: str, metric: str, value: float, expected: float, bar: float) -> Row:
    """The relative distance of a counter from its expected value."""
    return check_row(check, abs(value / expected - 1), bar, metric=metric, counted=value, expected=expected)


def contest_rows(tools_cubin: bytes, uuid: str, problems: list[Problem]) -> list[Row]:
    """The checks of the library, in a separate process."""
    contests = apart(library.contests, tools_cubin, uuid, problems)
    return [library.torch_row(contests), library.best_row(contests)]


def copy_rows(check: str, metric: str, num_bytes: int) -> list[Row]:
    """DRAM traffic of a copy, which reads and writes `num_bytes`."""
    report = apart(count_copy, num_bytes, (metric,))
    return [exactness_row(check, metric, counted(report, metric), num_bytes, COPY_BAR)]


def tensor_rows(builder: Builder, gpu: Gpu) -> list[Row]:
    """Tensor instructions of a fused pair with padded edges, compared with those of its tiles."""
    workload = ffn_pair(m=200, d_in=4072, d_hidden=8200, d_out=4072, activation=Activation.RELU)
    chosen = schedule(((128, 128, 64), (128, 128, 64)), stages=3, warps=8, assignment=Assignment.STATIC)
    ready = prepare(workload, gpu, fused(chosen), builder, {})
    if ready.refusal:
        raise ValueError(ready.refusal)
    tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
    answers: list[CountAnswer] = apart(count_works, tools, problem(workload), [ready.work], (TENSOR_METRIC,))
    report = answers[0].report
    if not isinstance(report, CounterReport):
        raise report
    expected = sum(num_mma_instructions(plan.graph) for plan in ready.plans)
    return [exactness_row("tensor_ops", TENSOR_METRIC, counted(report, TENSOR_METRIC), expected, 0.0)]


def check_card(out: Path | None, *, quick: bool, cache: Path) -> list[Row]:
    """All checks on this machine's first usable GPU.

    Raises:
        WorkerError: there is no usable GPU.
    """
    card = usable_gpus()[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = card.uuid  # for the processes of separate checks
    with closing(Builder(cache)) as builder, closing(GpuSupervisor(card, cache)) as supervisor:
        gpu = supervisor.target.gpu
        tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
        out = out or results_file(supervisor.target.id, "measuring")
        checks = Checks(out=out, machine=machine_of(supervisor.environment()))
        repeats = Repeats(supervisor, quick=quick, min_gap_s=0.0 if quick else MIN_GAP_S)
        checks.attempt(("overhead_s",), repeats.first)

        problems = library.problems()[: 1 if quick else None]
        library_rows = partial(contest_rows, tools, card.uuid, problems)
        checks.attempt(("torch_agreement", "best_of_8"), library_rows)
        for check, metric, num_bytes in (
            ("copy_dram_read", DRAM_READ_BYTES, READ_COPY_BYTES),
            ("copy_dram_write", DRAM_WRITE_BYTES, WRITE_COPY_BYTES),
        ):
            checks.attempt((check,), partial(copy_rows, check, metric, num_bytes))
        checks.attempt(("tensor_ops",), partial(tensor_rows, builder, gpu))
        checks.attempt(("repeat_median", "repeat_p95"), repeats.again)
    num_trials = NUM_QUICK_FAULT_TRIALS if quick else NUM_FAULT_TRIALS
    names = ("faults_accounted", "wrong_numbers", "hang_loss_median_s", "hang_loss_max_s", "memory_back")
    checks.attempt(names, partial(measure_faults, num_trials))
    return checks.rows


def check_twin(evaluator: SimulatedEvaluator, out: Path | None, *, quick: bool) -> list[Row]:
    """The checks that need no card, on a simulated one."""
    out = out or results_file(evaluator.target.id, "measuring")
    checks = Checks(out=out, machine=machine_of(evaluator.environment()))
    repeats = Repeats(evaluator, quick=quick, min_gap_s=0.0)
    checks.attempt(("overhead_s",), repeats.first)
    checks.attempt(("repeat_median", "repeat_p95"), repeats.again)
    return checks.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the checks; exit code 1 if one fails."""
    options = read_options(__doc__, arguments)
    begin_s = time.monotonic()
    if twin := twin_of(options.gpu):
        rows = check_twin(twin, options.out, quick=options.quick)
    else:
        with tempfile.TemporaryDirectory() as cache:
            rows = check_card(options.out, quick=options.quick, cache=Path(cache))
    failing = [row["check"] for row in rows if not row["holds"]]
    print(f"{len(rows) - len(failing)} of {len(rows)} checks hold, in {time.monotonic() - begin_s:.0f} s")
    if failing:
        raise SystemExit(f"these do not: {', '.join(failing)}")


if __name__ == "__main__":
    main()
