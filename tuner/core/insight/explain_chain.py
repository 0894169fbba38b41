"""Of a chain: who reads whom, what each boundary between two ops costs, and in which launches it is best run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tuner.core.model.runs import ranked_ways
from tuner.core.model.simulate import Timeline
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule

#: Ways to launch that are told.
NUM_WAYS = 3


def explain_chain(
    workload: Workload, gpu: Gpu, schedule: Schedule, plan: VerifiedPlan, timeline: Timeline
) -> Iterator[str]:
    """Sentences about the fused launch of a chain's schedule, by its timeline, and about other launches of it."""
    for index, op in enumerate(workload.ops):
        named = [("reads", op.source), ("adds", op.residual_source), ("norms by", op.norm)]
        read = ", ".join(f"{verb} {tensor}" for verb, tensor in named if workload.op_index(tensor) is not None)
        turned = ", turns queries and keys, writes keys and values to a cache" if op.rotary else ""
        yield f"Op: {op.name} {read or 'reads inputs alone'}{turned}{_boundary(index, plan, timeline)}."
    ways = ranked_ways(workload, gpu, schedule)
    lines = "; ".join(f"{launches_of(workload, one)} {time_us:.1f} us" for time_us, one in ways[:NUM_WAYS])
    yield f"Cuts: of {len(ways)} ways to launch it programmatically the shortest forecasts have {lines}."


def launches_of(workload: Workload, candidate: Candidate) -> str:
    """``[o_proj] [gate_up down] [qkv]``."""
    assert candidate.schedule
    names = [op.name for op in workload.ops]
    starts = candidate.schedule.ordering.run_starts if candidate.plan_kind.is_in_runs else ()
    inner = starts or (() if candidate.plan_kind.is_fused else tuple(range(1, len(names))))
    return " ".join(f"[{' '.join(names[begin:end])}]" for begin, end in pairwise((0, *inner, len(names))))


def _boundary(op: int, plan: VerifiedPlan, timeline: Timeline) -> str:
    """How long its tasks wait for signals, and how long after the end of what they wait for the last of them begins."""
    op_of = plan.plan.tasks[:, 0]
    mine = [row for row in timeline.rows if op_of[row[1]] == op]
    producers = set(plan.graph.workload.producers_of(op))
    ends_us = [row[-1] for row in timeline.rows if int(op_of[row[1]]) in producers]
    if not ends_us:
        return ""
    waits_us = [row[3] - row[2] for row in mine]
    begun_us = max(row[3] for row in mine) - max(ends_us)
    return (
        f"; its tasks wait {float(np.median(waits_us)):.1f} us in the median and {max(waits_us):.1f} at most, and "
        f"the last of them begins {begun_us:.1f} us after all that it reads is stored"
    )
