"""For a chain: which op reads which, what each boundary between two ops costs, and the best way to launch it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tuner.core.model.runs import ranked_ways
from tuner.core.model.simulate import Timeline
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import launches_of
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.schedule import Schedule

#: How many ways to launch the chain are listed.
NUM_WAYS = 3


def explain_chain(
    workload: Workload, gpu: Gpu, schedule: Schedule, launches: Sequence[tuple[VerifiedPlan, Timeline]]
) -> Iterator[str]:
    """Sentences about the smallest set of launches for a chain's products, given with their timelines, and about
    other ways to launch the chain; `schedule` covers only its products."""
    names = {op.name for op in workload.ops}
    for index, op in enumerate(workload.tile_ops):
        named = [("reads", op.source), ("adds", op.residual_source), ("norms by", op.norm)]
        read = ", ".join(f"{verb} {tensor}" for verb, tensor in named if tensor in names)
        actions = "".join(f", {action}" for part in op.parts if (action := part.action(op)))
        plan, timeline = next(launch for launch in launches if index in launch[0].graph.op_indices)
        yield f"Op: {op.name} {read or 'reads inputs alone'}{actions}{_boundary(index, plan, timeline)}."
    ways = ranked_ways(workload, gpu, schedule)
    if len(ways) < 2:
        return
    lines = "; ".join(f"{launches_in_words(workload, one)} {time_us:.1f} us" for time_us, one in ways[:NUM_WAYS])
    yield f"Cuts: of {len(ways)} ways to launch it programmatically, these have the shortest forecasts: {lines}."


def launches_in_words(workload: Workload, candidate: Candidate) -> str:
    """``[o_proj] [gate_up down] [qkv]``."""
    names = [op.name for op in workload.ops]
    return " ".join(f"[{' '.join(names[op] for op in launch)}]" for launch in launches_of(workload, candidate))


def _boundary(op: int, plan: VerifiedPlan, timeline: Timeline) -> str:
    """How long the tasks of `op` wait for signals, and how long after its last input the last of them begins."""
    op_of = plan.plan.tasks[:, 0]
    mine = [row for row in timeline.rows if op_of[row[1]] == op]
    producers = set(plan.graph.workload.producers_of(op))
    ends_us = [row[-1] for row in timeline.rows if int(op_of[row[1]]) in producers]
    if not ends_us:
        return ""
    waits_us = [row[3] - row[2] for row in mine]
    begun_us = max(row[3] for row in mine) - max(ends_us)
    return (
        f"; its tasks wait {float(np.median(waits_us)):.1f} us in the median and {max(waits_us):.1f} at most, and the "
        f"last of them starts {begun_us:.1f} us after all of its inputs are stored"
    )
