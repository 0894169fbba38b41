"""The cost of injected faults on a card: every tenth trial hangs, crashes or dies, and must not affect the others.

Each trial goes through the real supervisor. The loss of a hang is the time from its deadline until the next trial
begins in a fresh process. It contains the kill, and the next trial's wait for process, context, probe, inputs and
references. Nothing is built in between, since that would hide a part of it.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.report import at_least_row, check_row
from tests.support.on_card import fused, problem, schedule
from tests.support.planted import (
    HANG,
    KERNEL_FAULTS,
    PROCESS_FAULTS,
    KernelFault,
    ProcessFault,
    with_deed,
    with_fault,
    with_raised_threshold,
)
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.host.cards import Card, usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

WORKLOAD = ffn_pair(m=64, d_in=512, d_hidden=1024, d_out=512)
PROBLEM = problem(WORKLOAD)
TILES = ((16, 64, 64), (16, 64, 64))
CANDIDATES = (
    Candidate(plan_kind=PlanKind.LIBRARY),
    fused(schedule(TILES)),
    fused(schedule(TILES, assignment=Assignment.STATIC)),
    fused(schedule(((32, 64, 64), (32, 64, 64)))),
)
#: Share of the trials with a fault, and of these the share that hangs forever.
FAULT_SHARE, HANG_SHARE = 0.1, 0.4
#: A deadline that no good trial here reaches: one takes a few tenths of a second.
DEADLINE_S = 2.0
HANG_MEDIAN_BAR_S, HANG_MAX_BAR_S = 2.5, 4.0
#: Memory that may be missing at the end; a leaked context is larger.
MEMORY_BAR_BYTES = 256 * 2**20
#: A good trial is counted if its speed-up differs by more than this from its value before any fault.
TIME_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault, and how its trial must end."""

    name: str
    prepared: PreparedKernel
    kind: FailureKind
    reason: str


@dataclass(kw_only=True)
class Tally:
    """Observations of a run."""

    #: Fault -> how often its trial ended as required, and how often otherwise.
    accounted: Counter[str] = field(default_factory=Counter)
    unaccounted: list[str] = field(default_factory=list)
    good: int = 0
    wrong: list[str] = field(default_factory=list)
    #: Relative differences of speed-ups from their values before any fault.
    deviations: list[float] = field(default_factory=list)
    #: Per hang: seconds from its deadline to the beginning of the next trial.
    hang_losses_s: list[float] = field(default_factory=list)
    #: Seconds that the next trial waited for another process, for each lost process.
    starts_s: list[float] = field(default_factory=list)
    most_foreign: float = 0.0


def planted_faults(good: PreparedKernel, builder: Builder, arch: str) -> tuple[Planted, list[Planted]]:
    """The hang that ends at its deadline, and all other faults."""

    def of_kernel(fault: KernelFault) -> Planted:
        prepared = with_fault(fault, good, builder, arch)
        return Planted(name=fault.name, prepared=prepared, kind=fault.kind, reason=fault.reason)

    def of_process(fault: ProcessFault) -> Planted:
        prepared = with_deed(fault, good)
        return Planted(name=fault.name, prepared=prepared, kind=FailureKind.CRASH, reason=fault.reason)

    bounded = Planted(
        name="bounded wait",
        prepared=with_raised_threshold(good),
        kind=FailureKind.HANG,
        reason=r"posts seen, \d+ expected",
    )
    return of_kernel(HANG), [*map(of_kernel, KERNEL_FAULTS), *map(of_process, PROCESS_FAULTS), bounded]


def draw_trials(num_trials: int, num_good: int, others: list[Planted], hang: Planted, seed: int) -> list[Any]:
    """For each trial, the index of a good candidate or a fault; the last is good, so that each loss is measured
    completely.
    """
    rng = random.Random(seed)
    trials: list[Any] = [rng.randrange(num_good) for _ in range(num_trials)]
    places = rng.sample(range(num_trials - 1), round(FAULT_SHARE * num_trials))
    num_hangs = round(HANG_SHARE * len(places))
    for i, place in enumerate(places):
        trials[place] = hang if i < num_hangs else others[i % len(others)]
    return trials


def run_trials(
    trials: list[Any], goods: list[PreparedKernel], usual: list[Measured], measure: Callable[[PreparedKernel], Outcome]
) -> Tally:
    """Measures the trials in sequence."""
    tally = Tally()
    beyond_deadline_s: float | None = None
    for trial in trials:
        begin = time.monotonic()
        outcome = measure(trial.prepared if isinstance(trial, Planted) else goods[trial])
        spent_s = time.monotonic() - begin
        start_s = outcome.stage_s.get("start", 0.0)
        if beyond_deadline_s is not None:
            tally.hang_losses_s.append(beyond_deadline_s + start_s)
        if start_s > 0.05:
            tally.starts_s.append(start_s)
        beyond_deadline_s = None
        if isinstance(trial, Planted):
            judge_fault(tally, trial, outcome)
            if trial.name == HANG.name:
                beyond_deadline_s = spent_s - start_s - DEADLINE_S
        else:
            judge_good(tally, usual[trial], outcome)
    return tally


def judge_fault(tally: Tally, fault: Planted, outcome: Outcome) -> None:
    """Counts whether the trial's reason names the fault."""
    if isinstance(outcome, Failed) and outcome.kind is fault.kind and re.search(fault.reason, outcome.reason):
        tally.accounted[fault.name] += 1
    else:
        tally.unaccounted.append(f"{fault.name}: {outcome}"[:300])


def judge_good(tally: Tally, usual: Measured, outcome: Outcome) -> None:
    """Counts whether results and time are as on a machine without faults."""
    tally.good += 1
    if not isinstance(outcome, Measured) or not math.isclose(outcome.rel_error, usual.rel_error):
        tally.wrong.append(str(outcome)[:300])
        return
    tally.deviations.append(abs(outcome.speedup / usual.speedup - 1))
    foreign = [metric.value for metric in outcome.metrics if metric.tag == "foreign_processes"]
    tally.most_foreign = max(tally.most_foreign, *foreign, 0.0)


def rows_of(tally: Tally, memory_before_bytes: int, memory_after_bytes: int) -> list[dict[str, Any]]:
    """The checks."""
    num_accounted, by_fault, others = tally.accounted.total(), dict(tally.accounted), tally.unaccounted
    num_faults = num_accounted + len(tally.unaccounted)
    off = sum(deviation > TIME_TOLERANCE for deviation in tally.deviations)
    times = {"times_off": off, "tolerance": TIME_TOLERANCE, "worst": round(max(tally.deviations, default=0.0), 4)}
    losses_s = tally.hang_losses_s
    each = {"each": [round(s, 3) for s in losses_s], "start_median_s": round(statistics.median(tally.starts_s), 3)}
    before = {"before_bytes": memory_before_bytes, "foreign_processes": tally.most_foreign}
    return [
        at_least_row("faults_accounted", num_accounted, num_faults, by_fault=by_fault, others=others),
        check_row("wrong_numbers", len(tally.wrong), 0, of=tally.good, examples=tally.wrong[:3], **times),
        check_row("hang_loss_median_s", statistics.median(losses_s), HANG_MEDIAN_BAR_S, of=len(losses_s)),
        check_row("hang_loss_max_s", max(losses_s), HANG_MAX_BAR_S, **each),
        check_row("memory_back", memory_after_bytes - memory_before_bytes, MEMORY_BAR_BYTES, **before),
    ]


def used_bytes(card: Card) -> int:
    """Memory in use on the card, by any process."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)


@contextmanager
def supervised(card: Card, cache: Path) -> Iterator[tuple[GpuSupervisor, Builder]]:
    """A supervisor of the card, and a separate builder."""
    builder = Builder(cache, num_processes=4)
    supervisor = GpuSupervisor(card, cache, Limits(evaluate_deadline_s=DEADLINE_S))
    try:
        yield supervisor, builder
    finally:
        supervisor.close()
        builder.close()


def measure_faults(num_trials: int, seed: int = 0) -> list[dict[str, Any]]:
    """All rows.

    Raises:
        WorkerError: no card is usable.
    """
    card = usable_gpus()[0]
    with tempfile.TemporaryDirectory() as cache, supervised(card, Path(cache)) as (supervisor, builder):
        gpu = supervisor.target.gpu
        goods = [prepare(WORKLOAD, gpu, candidate, builder, {}) for candidate in CANDIDATES]
        hang, others = planted_faults(goods[1], builder, gpu.arch)

        def measure(prepared: PreparedKernel) -> Outcome:
            return supervisor.measure(PROBLEM, prepared)

        usual = [undisturbed(measure, good) for good in goods]
        before_bytes = used_bytes(card)
        tally = run_trials(draw_trials(num_trials, len(goods), others, hang, seed), goods, usual, measure)
        return rows_of(tally, before_bytes, used_bytes(card))


def undisturbed(measure: Callable[[PreparedKernel], Outcome], good: PreparedKernel) -> Measured:
    """The trial with the median speed-up of three."""
    outcomes = [measure(good) for _ in range(3)]
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measured)]
    assert len(measured) == len(outcomes), outcomes
    return sorted(measured, key=lambda outcome: outcome.speedup)[1]
