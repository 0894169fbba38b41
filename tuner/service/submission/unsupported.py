"""Whether a workload has any schedule on a GPU, as far as known before its space is built."""

from __future__ import annotations

from tuner.core.legal.legality import engine_problem
from tuner.core.legal.small_elements import conversion_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine


def refusal(workload: Workload, gpu: Gpu) -> tuple[str, str, str] | None:
    """The field of a workload that no kernel supports on `gpu`, the reason, and the remedy; None if no obstacle is
    known."""
    if problem := conversion_problem(workload, gpu):
        reason, _, remedy = problem.partition(": ")
        return "dtype", reason, f"{remedy}, or another target"
    reasons = [engine_problem(workload, gpu, engine) for engine in Engine] if workload.tile_ops else []
    known = [reason.rpartition(" use ")[0].rstrip(",:") for reason in reasons if reason]
    if not reasons or len(known) < len(reasons):
        return None
    return "sizes", f"no engine supports it: {'; '.join(known)}", "change the sizes or the types that these name"
