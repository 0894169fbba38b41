"""One run of a traced build: its numbers checked like every candidate's, its stamps brought to the host."""

from __future__ import annotations

import cupy

from tuner.core.trial.job import CacheState

from ..protocol.messages import TraceAnswer, Work
from ..source.launch_args import OpBuffers
from .baselines import ChainRunner, runner_of
from .check import Aborted, WrongNumbers, check_after_timing, check_numbers
from .launch import Kernel
from .problem_on_card import ProblemOnCard


def trace_once(prepared: ProblemOnCard, kernel: Kernel, work: Work) -> TraceAnswer:
    """Checks the numbers, which also warms up; then traces a run in the objective's state of the L2, checked too.

    Raises:
        LaunchRefused: the card does not hold what its plan needs, or this is not what was proven and built.
        Overwritten: it wrote where it must not.
    """
    cold = prepared.problem.objective.l2 is CacheState.COLD

    def traced_run(runner: ChainRunner, ops: tuple[OpBuffers, ...]) -> str | None:
        cupy.cuda.Device().synchronize()  # the poison is on another stream
        with prepared.stream:
            for plan in runner.plans:
                plan.clear_stamps()
            prepared.timer.lead_in(flush=cold)
            runner.enqueue(ops, prepared.stream.ptr)
        prepared.stream.synchronize()
        return runner.abort_record()

    runner = runner_of(work, kernel, traced=True)
    reason = ""
    try:
        check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
        check_after_timing(prepared.data, prepared.comparer, lambda ops: traced_run(runner, ops), work)
    except (WrongNumbers, Aborted) as error:
        reason = str(error)
    prepared.check_intact(runner)
    return TraceAnswer(stamps=() if reason else tuple(plan.stamps() for plan in runner.plans), reason=reason)
