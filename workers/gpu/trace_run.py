"""One run of a traced build: its numbers checked like every candidate's, its stamps brought to the host."""

from __future__ import annotations

import cupy

from tuner.core.trial.job import CacheState

from ..protocol.messages import TraceAnswer, Work
from ..source.launch_args import OpBuffers
from .attention_launch import AttentionOnDevice, AttentionRunner
from .baselines import ChainRunner, Runner
from .check import Aborted, WrongNumbers, check_after_timing, check_numbers
from .launch import PlanOnDevice
from .problem_on_card import ProblemOnCard


def trace_once(
    prepared: ProblemOnCard, attentions: tuple[AttentionOnDevice, ...], products: ChainRunner | None, work: Work
) -> TraceAnswer:
    """Checks the numbers, which also warms up; then traces a run in the objective's state of the L2, checked too. One
    with an attention is traced at the lengths that are timed, and checked behind that at others.

    Raises:
        LaunchRefused: the card does not hold what its plan needs, or this is not what was proven and built.
        Overwritten: it wrote where it must not.
    """
    cold = prepared.problem.objective.l2 is CacheState.COLD
    stamped: list[AttentionOnDevice | PlanOnDevice] = [*attentions, *(products.plans if products else ())]
    runner: Runner | None = AttentionRunner(attentions, products) if attentions else products
    assert runner is not None
    found: TraceAnswer | None = None

    def run_once(ops: tuple[OpBuffers, ...]) -> str | None:
        return prepared.run_once(runner, ops)

    def traced_run(ops: tuple[OpBuffers, ...]) -> str | None:
        nonlocal found
        cupy.cuda.Device().synchronize()  # the poison is on another stream
        with prepared.stream:
            for one in stamped:
                one.clear_stamps()
            prepared.timer.lead_in(flush=cold)
            runner.enqueue(ops, prepared.stream.ptr)
        prepared.stream.synchronize()
        found = TraceAnswer(
            stamps=tuple(plan.stamps() for plan in products.plans) if products else (),
            attentions=tuple(one.stamps() for one in attentions),
        )
        return runner.abort_record()

    reason = ""
    try:
        check_numbers(prepared.data, prepared.comparer, run_once, work)
        if attentions:
            reason = traced_run(prepared.data.slot_ops(0)) or ""
        check_after_timing(prepared.data, prepared.comparer, run_once if attentions else traced_run, work)
    except (WrongNumbers, Aborted) as error:
        reason = str(error)
    prepared.check_intact(runner)
    return TraceAnswer(stamps=(), reason=reason) if reason or found is None else found
