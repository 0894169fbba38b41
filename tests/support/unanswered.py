"""A phase that `tests/house/planted.py` plants, requested from a process that does not answer."""

from __future__ import annotations

from tests.support.rogues import rogue
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.ops.gemm.pairs import ffn_pair
from tuner.settings import Settings
from tuner.workers.host.asking import Asking
from tuner.workers.host.gpu_process import ChildLost, GpuProcesses
from tuner.workers.protocol import messages


def check_a_planted_phase_is_killed_at(planted_s: float) -> None:
    """Checks that the phase ends at the deadline of its setting."""
    limits = Settings.model_validate({"planted_deadline_s": planted_s}).limits
    problem = Problem(workload=ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64), objective=Objective())
    processes = GpuProcesses("hangs", b"", limits, main=rogue)
    reason = "it answered"
    try:
        planted = getattr(Asking(processes, limits), "planted")  # noqa: B009  # the copy alone has it
        planted(problem, messages.Work(plan_kind=PlanKind.LIBRARY))
    except ChildLost as lost:
        reason = str(lost)
    finally:
        processes.close()
    assert f"no answer within {planted_s:g} s" in reason, reason
