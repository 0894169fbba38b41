"""Hardware counters of any work on the current card: a candidate's run, or a benchmark's callable.

A process that has counted must not measure times afterwards, since the profiler stays loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import cupy
from cuda.bindings import driver

from tuner.core.trial.reports.inspection import Counter, CounterReport, no_counters

from ...cupti.host import ProfilerHost
from ...cupti.library import CuptiError, load_cupti
from ...cupti.metrics import BASE_SET
from ...cupti.profiler import chip_name, collect, counter_availability
from ..launching.launch import check
from ..library.runners import Runner
from .problem import ProblemOnCard


def count_around(
    run: Callable[[], None], metrics: Iterable[str] | None = None, *, before: Callable[[], None] | None = None
) -> CounterReport:
    """Counts the device's work in `run`; metrics have the vendor's names, None for the base set.

    `run` enqueues work on any streams, the same each time: it runs once to warm up, so that nothing is loaded within
    the range, and then once per pass. `before` runs before each pass and is not counted, e.g. to flush the L2. This
    function waits for both. If nothing can be counted, the report's `reason` says why.

    Raises:
        InvalidInput: the GPU has no such metric; the message names similar ones.
    """

    def settle(work: Callable[[], None] | None) -> None:
        if work is not None:
            work()
        cupy.cuda.Device().synchronize()

    settle(run)
    try:
        cupti = load_cupti()
        chip = chip_name(cupti, cupy.cuda.Device().id)
        context = int(check(driver.cuCtxGetCurrent()))
        with ProfilerHost(cupti, chip, counter_availability(cupti, context)) as host:
            chosen = host.choose(BASE_SET if metrics is None else metrics)
            if not chosen.metrics:
                return replace(no_counters(f"{chip} can read none of the metrics"), absent=chosen.absent)
            config = host.configure(chosen.metrics)
            data, num_passes = collect(cupti, context, config, lambda: settle(run), lambda: settle(before))
            read = dict(zip(chosen.metrics, host.evaluate(data, chosen.metrics), strict=True))
            units = {metric: host.describe(metric) for metric in read}
    except CuptiError as error:
        return no_counters(str(error))
    void = {metric: "the profiler read nothing" for metric, value in read.items() if not math.isfinite(value)}
    counters = tuple(
        Counter(name=metric, unit=units[metric][0], description=units[metric][1], value=value)
        for metric, value in read.items()
        if metric not in void
    )
    return CounterReport(counters=counters, num_passes=num_passes, absent={**chosen.absent, **void})


def count_once(prepared: ProblemOnCard, runner: Runner, metrics: tuple[str, ...] | None) -> CounterReport:
    """Counts cold runs of a candidate, each after a read of three times the L2.

    Raises:
        InvalidInput: the GPU has no such metric; the message names similar ones.
    """

    def run() -> None:
        with prepared.stream:
            runner.enqueue(prepared.data.slot_ops(0), prepared.stream.ptr)

    def flush() -> None:
        with prepared.stream:
            prepared.timer.lead_in(flush=True)

    report = count_around(run, metrics, before=flush)
    record = runner.abort_record()
    return no_counters(record) if record else report
