"""One run of a traced build: its results are checked like every candidate's, and its stamps copied to the host."""

from __future__ import annotations

import cupy

from tuner.core.trial.job import CacheState

from ...protocol.messages import TraceAnswer, Work
from ...source.launchable import LaunchRefused
from ..library.runners import ChainRunner, Runner
from ..own.runner import OwnRunner
from ..tensors.check import Aborted, WrongNumbers, check_after_timing, check_numbers
from ..tensors.op_data import RunOperands
from .problem import ProblemOnCard


def trace_once(prepared: ProblemOnCard, runner: Runner, work: Work) -> TraceAnswer:
    """Checks the numbers, which also warms up; then traces a run in the objective's state of the L2. Without a launch
    op the traced run is checked too. Checks of a launch op have other inputs, e.g. lengths; the traced run has the
    timed ones.

    Raises:
        LaunchRefused: it records no stamps.
        Overwritten: it wrote to memory that it must not write.
    """
    if not isinstance(runner, OwnRunner | ChainRunner):
        raise LaunchRefused(f"a {work.plan_kind} candidate has no generated kernel to trace")
    plans, cold = runner.plans, prepared.problem.objective.l2 is CacheState.COLD

    def traced_run(ops: RunOperands) -> str | None:
        cupy.cuda.Device().synchronize()  # the NaNs are written on another stream
        with prepared.stream:
            for plan in plans:
                plan.clear_stamps()
            prepared.timer.lead_in(flush=cold)
            runner.enqueue(ops, prepared.stream.ptr)
        prepared.stream.synchronize()
        return runner.abort_record()

    def untraced_run(ops: RunOperands) -> str | None:
        return prepared.run_once(runner, ops)

    is_plain = isinstance(runner, ChainRunner)
    reason: str | None = None
    try:
        check_numbers(prepared.data, prepared.comparer, untraced_run, work)
        check_after_timing(prepared.data, prepared.comparer, traced_run if is_plain else untraced_run, work)
        reason = None if is_plain else traced_run(prepared.data.slot_ops(0))
    except (WrongNumbers, Aborted) as error:
        reason = str(error)
    prepared.check_intact(runner)
    return TraceAnswer(stamps=() if reason else tuple(plan.stamps() for plan in plans), reason=reason or "")
