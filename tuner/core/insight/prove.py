"""Why the plans of a schedule may run, in sentences and in a drawing of their waits; or why they may not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.table.header import FIRST_WAVE, STATIC
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.proof.liveness import late_tasks, post_totals, queue_position, task_name
from tuner.core.proof.safety import num_unshown
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.units import counted
from tuner.errors import CoverageError, LivenessError, PlanError

Ints = npt.NDArray[np.int64]
_ORDERS = {
    STATIC: "each CTA runs its own queue",
    FIRST_WAVE: "each CTA starts with an assigned task, and draws the others",
}
#: Maximum number of tasks, and of tiles, per line of the drawing.
_MOST_NAMED = 3


def prove(workload: Workload, gpu: Gpu, candidate: Candidate, words: Sequence[bytes] = ()) -> tuple[VerifiedPlan, ...]:
    """The proven plans of a candidate's launches; `words`, if given, replaces those of its tile ops.

    Raises:
        IllegalSchedule: there is no such launch.
        PlanError: a plan is refused.
    """
    own_plans_for(workload, gpu, candidate)
    plans = plans_for(workload, gpu, candidate)
    if not words:
        return plans
    if len(words) != len(plans) or candidate.plan_kind.is_side_by_side:
        problem = f"{candidate.plan_kind} has {len(plans)} launches of tile ops"
        raise CoverageError("the plans differ", f"{problem}; there are {len(words)} words")
    pairs = zip(words, plans, strict=True)
    return tuple(verify(Plan.from_words(own), plan.graph, plan.resources, gpu) for own, plan in pairs)


def in_words(proven: VerifiedPlan) -> Iterator[str]:
    """What was proven, and with which argument."""
    plan, graph = proven.plan, proven.graph
    names = " and ".join(graph.name_of(op) for op in graph.op_indices)
    order = _ORDERS.get(plan.assignment, "tasks are drawn in the order of their tickets")
    yield f"{names}: {counted(plan.num_tasks, 'task')} on {counted(plan.num_ctas, 'CTA')}; {order}."
    grids = ", ".join(f"{graph.name_of(op)} {rows} x {columns}" for op, (rows, columns) in graph.grids.items())
    yield f"Coverage: each part of each tile is computed by exactly one task ({grids}), and tasks read nothing else."
    resources = proven.resources
    resident = (
        "all of them must be resident at once, and are" if plan.needs_all_ctas else "any number may run at a time"
    )
    yield (
        f"Resources: a CTA has {resources.num_threads} threads, {resources.registers_per_thread} registers per "
        f"thread, {resources.smem_bytes} bytes of shared memory; {resident}."
    )
    late = late_tasks(plan, queue_position(plan)).size
    argument = (
        f"{late} tasks come before a post that they wait for, so the plan was executed symbolically, and every task "
        "started"
        if late
        else "each wait is satisfied by tasks that start earlier"
    )
    yield f"Liveness: {argument}."
    edges, unshown = graph.num_edges(plan.tasks), num_unshown(plan, graph)
    if not edges:
        yield "Safety: no task reads what another task of the launch writes."
        return
    frozen = (
        f"; {unshown} reads that these waits do not order were checked by a run with the writer frozen"
        if unshown
        else ""
    )
    yield f"Safety: {edges} edges, each covered by waits that count all posts of their signals{frozen}."


def drawn(proven: VerifiedPlan, task: int | None = None) -> Iterator[str]:
    """Which task waits for which, as text: from op to op, and for one task, by default the last one that waits."""
    plan, graph = proven.plan, proven.graph
    totals = post_totals(plan)
    for op in graph.op_indices:
        mine = plan.tasks[plan.tasks[:, 0] == op]
        waiting = int((mine[:, 4] > mine[:, 3]).sum())
        signals = np.unique(mine[mine[:, 5] >= 0, 5])
        posts = f", {counted(signals.size, 'signal')} of {_range(totals[signals])} posts" if signals.size else ""
        waits = f"{waiting} of {len(mine)} tasks wait" if waiting else "no task waits"
        yield f"{graph.name_of(op)}: {waits}{posts}"
    waiting_tasks = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])
    if task is None and waiting_tasks.size:
        task = int(waiting_tasks[-1])
    if task is not None and task < plan.num_tasks:
        yield ""
        yield from _around(plan, graph, task)


def _around(plan: Plan, graph: TileGraph, task: int) -> Iterator[str]:
    """What one task waits for, and what waits for it."""
    begin, end, post = (int(word) for word in plan.tasks[task, 3:6])
    waits = plan.waits[begin:end].tolist()
    for signal_begin, signal_end, needed, _, step in waits:
        posting = np.flatnonzero((plan.tasks[:, 5] >= signal_begin) & (plan.tasks[:, 5] < signal_end))
        which = f"signal {signal_begin}"
        which += f" to {signal_end - 1}" if signal_end > signal_begin + 1 else ""
        yield _named(plan, graph, posting)
        where = "the epilogue" if step >= EPILOGUE_STEP else f"k-step {step}"
        yield f"  │ {which}, {needed} posts each: before {where}"
    yield from ("  ▼",) if waits else ()
    yield task_name(plan, graph, task) + ("" if waits else ", which waits for nothing")
    if post < 0:
        return
    readers = np.flatnonzero([_waits_on(plan, other, post) for other in range(plan.num_tasks)])
    yield f"  │ signal {post}"
    yield "  ▼"
    yield _named(plan, graph, readers) if readers.size else "nothing in this launch"


def _waits_on(plan: Plan, task: int, signal: int) -> bool:
    begin, end = plan.tasks[task, 3:5]
    waits = plan.waits[begin:end]
    return bool(((waits[:, 0] <= signal) & (signal < waits[:, 1])).any())


def _named(plan: Plan, graph: TileGraph, tasks: Ints) -> str:
    shown = [task_name(plan, graph, int(task)) for task in tasks[:_MOST_NAMED]]
    more = len(tasks) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _range(values: Ints) -> str:
    least, most = int(np.min(values)), int(np.max(values))
    return str(least) if least == most else f"{least} to {most}"


def refused(error: PlanError) -> Iterator[str]:
    """The witness of a refusal; for a deadlock, with a drawing of its waits."""
    yield f"Refused: {error.problem}."
    if not isinstance(error, LivenessError) or not error.cycle:
        yield f"Witness: {error.witness}."
        return
    for number, (who, why) in enumerate(error.cycle):
        yield f"{'┌─▶' if number == 0 else '│  '} {who}"
        yield f"│     │ {why}"
        yield "│     ▼" if number + 1 < len(error.cycle) else "└─────┘"
