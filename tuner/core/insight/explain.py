"""Why a schedule is fast or slow, in sentences with numbers: bounds, waves, waits, traffic, and the best neighbour.

All times except the bounds are the simulator's forecast. It ranks schedules, but does not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.core.insight.explain_chain import explain_chain
from tuner.core.insight.explain_launch_ops import explain_launch_ops
from tuner.core.model.bounds import Waves, dram_us, io_bytes, io_us, tensor_us, wave_us
from tuner.core.model.forecast import forecast_us
from tuner.core.model.rates import rates_of, source_of_rates
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate, in_fewest_launches
from tuner.core.schedule.codec import names_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import JointSpace
from tuner.core.space.policy_orders import policies_of
from tuner.core.space.space import Space
from tuner.errors import PlanError

#: Maximum number of neighbours that are forecast in search of a better schedule.
MAX_NEIGHBOURS = 60


def explain(workload: Workload, gpu: Gpu, schedule: Schedule) -> list[str]:
    """Sentences about a schedule's fused launch; if it has launch ops, about them and the products around them.

    Raises:
        IllegalSchedule: the schedule is not legal.
    """
    heading = [f"{workload.describe()} on {gpu.name}: {schedule}.", source_of_rates(gpu)]
    schedule = schedule.but(ordering=replace(schedule.ordering, run_starts=()))  # other launches are described as well
    if not workload.launch_ops:
        return [*heading, *_products(workload, gpu, schedule)]
    if len(workload.tile_ops) <= 1:
        space = JointSpace(workload, gpu)
        return [*heading, *explain_launch_ops(workload, gpu, schedule), _next_best_apart(space, schedule)]
    products = _products(workload, gpu, schedule.but(launch_ops=()))
    return [*heading, *explain_launch_ops(workload, gpu, schedule), *products]


def _products(workload: Workload, gpu: Gpu, schedule: Schedule) -> Iterator[str]:
    """Sentences about one launch of all products, or about one launch per group of products between launch ops."""
    plans = plans_for(workload, gpu, in_fewest_launches(workload, schedule))
    launches = [(plan, simulate(plan)) for plan in plans]
    yield from _bounds(workload, gpu, plans)
    for plan, _ in launches:
        yield from _waves(plan)
    for plan, timeline in launches:
        yield from _costs(workload, gpu, plan, timeline, of=_names(plan) if len(launches) > 1 else "")
    if workload.kind is WorkloadKind.CHAIN:
        yield from explain_chain(workload, gpu, schedule, launches)
    if len(launches) == 1:
        yield _policy(workload, gpu, schedule)
    yield _next_best(workload, gpu, schedule, sum(timeline.makespan_us for _, timeline in launches))


def _names(plan: VerifiedPlan) -> str:
    return f" of {' and '.join(plan.graph.workload.tile_ops[op].name for op in plan.graph.op_indices)}"


def _policy(workload: Workload, gpu: Gpu, schedule: Schedule) -> str:
    """Names the policies that give the same order as the schedule."""
    names = [name.replace("_", " ") for name in policies_of(workload, gpu, schedule)]
    if not names:
        return "Policy: the order matches no known policy."
    return f"Policy: the order is the same as that of {' and of '.join(names)}."


def _bounds(workload: Workload, gpu: Gpu, plans: Sequence[VerifiedPlan]) -> Iterator[str]:
    memory_us, product_us = dram_us(workload, gpu), tensor_us(workload, gpu)
    binding = "DRAM is" if memory_us > product_us else "the tensor cores are"
    whole_us = sum(wave_us(plan.graph, gpu, plan.plan.tasks) for plan in plans)
    of = "of products " if workload.launch_ops else ""
    yield (
        f"Bounds: DRAM {memory_us:.1f} us, tensor cores {product_us:.1f} us, so {binding} the limit; whole "
        f"tiles on {gpu.num_sms} SMs {whole_us:.1f} us; traffic {of}through all on-chip memory "
        f"{io_us(workload, gpu):.1f} us."
    )


def _waves(plan: VerifiedPlan) -> Iterator[str]:
    for op, (rows, cols) in plan.graph.grids.items():
        mine = plan.plan.tasks[plan.plan.tasks[:, 0] == op]
        waves = Waves(num_tasks=len(mine), num_ctas=plan.plan.num_ctas)
        split = mine[(mine[:, 7] > 0) & (mine[:, 6] == 0), 7]  # one entry per tile, that of its first part
        which = "" if split.size == rows * cols else f", {split.size} of them"
        counts = " to ".join(map(str, sorted({int(split.min()), int(split.max())}))) if split.size else ""
        parts = f"{which} in {counts} parts" if split.size else ""
        name = plan.graph.workload.tile_ops[op].name
        many = "wave" if waves.num_waves == 1 else "waves"
        yield (
            f"Waves: {name} has {rows} x {cols} tiles{parts}, {waves.num_waves} {many} of {plan.plan.num_ctas} CTAs, "
            f"with {waves.num_in_tail} tiles in the last: on its own it would keep {waves.efficiency:.0%} of them "
            "busy."
        )


def _costs(workload: Workload, gpu: Gpu, plan: VerifiedPlan, timeline: Timeline, of: str) -> Iterator[str]:
    """Sentences about what a launch costs; `of` names its ops, unless it has all of them."""
    read = timeline.l2_hit_bytes + timeline.dram_bytes
    least = (
        "" if of else f", {timeline.dram_bytes / io_bytes(workload, gpu.l2_bytes):.2f} times the minimum for this L2"
    )
    yield (
        f"Traffic{of}: {timeline.dram_bytes / 1e6:.1f} MB through DRAM{least}; {timeline.l2_hit_bytes / read:.0%} of "
        "the bytes read or written hit the L2."
    )
    lanes_us = timeline.makespan_us * timeline.num_ctas
    yield (
        f"Waits{of}: {timeline.waited_us / lanes_us:.1%} of the CTAs' time, on {plan.plan.num_signals} signals that "
        f"cover {plan.graph.num_edges(plan.plan.tasks):,} edges."
    )
    busy_us = sum(end - start for _, _, _, start, _, _, end in timeline.rows)
    shares = {
        "DRAM": 1e6 * timeline.dram_bytes / (gpu.dram_bytes_per_s * rates_of(gpu).dram_share) / timeline.makespan_us,
        "the path from the L2 to the SMs": timeline.link_us / timeline.makespan_us,
        "the tensor cores' whole tiles": wave_us(plan.graph, gpu, plan.plan.tasks) / timeline.makespan_us,
        "waiting for signals": timeline.waited_us / lanes_us,
        "CTAs that have run out of tasks (the tail)": 1 - (busy_us + timeline.waited_us) / lanes_us,
    }
    binding = max(shares, key=lambda name: shares[name])
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    yield f"Forecast{of}: {timeline.makespan_us:.1f} us. Of that: {listed}. Bottleneck: {binding}."


def _next_best(workload: Workload, gpu: Gpu, schedule: Schedule, makespan_us: float) -> str:
    best_us, best = makespan_us, None
    neighbours = Space(workload, gpu).neighbours(schedule)
    for other in neighbours[:: -(-len(neighbours) // MAX_NEIGHBOURS) or 1]:
        try:
            plans = plans_for(workload, gpu, in_fewest_launches(workload, other))
        except PlanError:
            continue
        other_us = sum(simulate(plan).makespan_us for plan in plans)
        if other_us < best_us:
            best_us, best = other_us, other
    if best is None:
        return "Next best: no schedule that differs in one axis has a shorter forecast."
    changes = ", ".join(differences(schedule, best))
    return f"Next best: {changes}: forecast {best_us:.1f} us, {1 - best_us / makespan_us:.1%} less."


def _next_best_apart(space: JointSpace, schedule: Schedule) -> str:
    """The single change with the best forecast, for a schedule with one launch per op."""

    def time_us(one: Schedule) -> float:
        return forecast_us(space.workload, space.gpu, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=one))

    neighbours, own_us = space.neighbours(schedule), time_us(schedule)
    offered = neighbours[:: -(-len(neighbours) // MAX_NEIGHBOURS) or 1]
    best = min(offered, key=time_us, default=None)
    if best is None or time_us(best) >= own_us:
        return "Next best: no schedule that differs in one axis has a shorter forecast."
    changes = ", ".join(differences(schedule, best))
    return f"Next best: {changes}: forecast {time_us(best):.1f} us, {1 - time_us(best) / own_us:.1%} less."


def differences(before: Schedule, after: Schedule) -> list[str]:
    """``interleave bands1 -> bands2`` for each field that differs."""
    changes = []
    halves = [(getattr(before, half), getattr(after, half)) for half in ("tiling", "ordering")]
    for old, new in (*zip(before.launch_ops, after.launch_ops, strict=False), *halves):
        for name in names_of(type(old)):
            values = [_text(getattr(one, name)) for one in (old, new)]
            if values[0] != values[1]:
                changes.append(f"{name} {values[0]} -> {values[1]}")
    return changes


def _text(value: object) -> str:
    return ("+".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
