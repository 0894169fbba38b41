"""From time stamps to a `Trace`: clocks converted to one time base, spans, shares, and the figures of a trial.

A kernel stamps with its SM's cycle counter, which is fine-grained but private. The GPU's global timer is shared but
coarse. A CTA reads both when it starts and when it ends. A line through these pairs converts each SM's cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.words import Plan
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.trial.outcome import Metric
from tuner.core.trial.reports.inspection import OpShares, TaskSpan, Trace

#: [num_tasks + num_ctas, 6] of one launch, -1 if nothing was written; `TaskStamps` and `CtaStamps` in trace.cuh. Task:
#: cycles at which it was taken, ready, loaded, computed, stored; its CTA. CTA: cycles and global nanoseconds at its
#: start and at its end; its SM; 0. Launch ops use the format of their kind, which its file ``stamps`` converts to this
#: one.
Stamps = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]

STAMP_WORDS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Stamped:
    """The stamps of one launch, and its tasks."""

    #: [task] op, tile_m, tile_n.
    tasks: Stamps
    #: Rows of tasks, then rows of CTAs.
    table: Stamps

    @classmethod
    def of(cls, launch: int, plan: Plan, table: Stamps) -> Stamped:
        """The stamps of a launch of products.

        Raises:
            ValueError: a task or a CTA recorded no stamps.
        """
        _check_complete(launch, plan, table)
        return cls(tasks=plan.tasks[:, :3].astype(np.int64), table=table)

    @property
    def ctas(self) -> Stamps:
        """The rows of CTAs."""
        return self.table[len(self.tasks) :]


def spans_from_stamps(launches: Sequence[Stamped]) -> tuple[TaskSpan, ...]:
    """The spans of all launches of one run, by launch and task, nanoseconds of the global timer since its first CTA.

    Raises:
        ValueError: the clocks of the stamps did not advance.
    """
    # Nanoseconds since 1970 do not fit in a double: the origin is subtracted as integers.
    origin_ns = min(int(stamped.ctas[:, 1].min()) for stamped in launches)
    return tuple(span for launch, stamped in enumerate(launches) for span in _launch_spans(launch, stamped, origin_ns))


def _check_complete(launch: int, plan: Plan, table: Stamps) -> None:
    if table.shape != (plan.num_tasks + plan.num_ctas, STAMP_WORDS):
        raise ValueError(f"launch {launch}: stamps of shape {table.shape} for {plan.num_tasks} tasks")
    missing = np.flatnonzero((table < 0).any(axis=1))
    if missing.size:
        row = int(missing[0])
        what = f"task {row}" if row < plan.num_tasks else f"CTA {row - plan.num_tasks}"
        counted = f"{missing.size} of {len(table)} tasks and CTAs have none"
        raise ValueError(f"{what} of launch {launch} recorded no stamps; {counted}")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Conversion of one SM's cycles to nanoseconds."""

    first_cycle: int
    first_ns: float
    ns_per_cycle: float

    def ns(self, cycles: Stamps) -> npt.NDArray[np.float64]:
        return self.first_ns + self.ns_per_cycle * (cycles - self.first_cycle).astype(np.float64)


def _lines(ctas: Stamps, origin_ns: int) -> dict[int, _Line]:
    """SM -> its line, by least squares over the starts and ends of its CTAs.

    An SM whose CTAs ran for less than half as long as another's has too short a base for its own slope and uses the
    mean slope of all.

    Raises:
        ValueError: no SM's clock moved.
    """
    points = {}
    for sm in np.unique(ctas[:, 4]).tolist():
        pairs = ctas[ctas[:, 4] == sm, :4].reshape(-1, 2)
        first_cycle = int(pairs[:, 0].min())
        points[sm] = first_cycle, (pairs[:, 0] - first_cycle).astype(float), (pairs[:, 1] - origin_ns).astype(float)
    longest = max(float(x.max()) for _, x, _ in points.values())
    num_cycles = sum(float(x.max()) for _, x, _ in points.values())
    mean_slope = sum(float(np.ptp(y)) for _, _, y in points.values()) / num_cycles if num_cycles else 0.0
    if mean_slope <= 0:
        raise ValueError("the clocks of the stamps did not advance")
    lines = {}
    for sm, (first_cycle, x, y) in points.items():
        slope = mean_slope
        if 2 * x.max() >= longest:
            centred = x - x.mean()
            slope = float(centred @ y) / float(centred @ centred)
        first_ns = float((y - slope * x).mean())
        lines[sm] = _Line(first_cycle=first_cycle, first_ns=first_ns, ns_per_cycle=slope)
    return lines


def _launch_spans(launch: int, stamped: Stamped, origin_ns: int) -> list[TaskSpan]:
    ctas = stamped.ctas
    lines = _lines(ctas, origin_ns)
    spans = []
    rows = stamped.table[: len(stamped.tasks)]
    for task, (row, words) in enumerate(zip(rows, stamped.tasks.tolist(), strict=True)):
        cta = int(row[5])
        sm = int(ctas[cta, 4])
        taken, ready, loaded, computed, stored = (round(ns) for ns in lines[sm].ns(row[:5]).tolist())
        spans.append(
            TaskSpan(
                launch=launch, task=task, op=words[0], tile_m=words[1], tile_n=words[2], cta=cta, sm=sm,
                taken_ns=taken, ready_ns=ready, loaded_ns=loaded, computed_ns=computed, stored_ns=stored,
            )
        )  # fmt: skip
    return spans


def op_names(workload: Workload) -> tuple[str, ...]:
    """The names of a trace's ops, by number: tile ops as their plans number them, followed by the others."""
    return (*(op.name for op in workload.tile_ops), *(op.name for op in workload.launch_ops))


def make_trace(
    spans: Iterable[TaskSpan], op_names: tuple[str, ...], num_ctas: Sequence[int], *, simulated: bool
) -> Trace:
    """The trace of one run; `num_ctas` is the grid of each launch. Time starts with the first task.

    Raises:
        ValueError: there is no span.
    """
    found = tuple(spans)
    if not found:
        raise ValueError("a trace needs at least one task")
    first_ns = min(span.taken_ns for span in found)
    shifted = tuple(_earlier(span, first_ns) for span in found)
    return Trace(
        spans=shifted,
        op_names=op_names,
        makespan_ns=max(span.stored_ns for span in shifted),
        shares=tuple(_shares(name, [s for s in shifted if s.op == op]) for op, name in enumerate(op_names)),
        tail=_tail(shifted, num_ctas),
        simulated=simulated,
    )


def trace_from_stamps(
    workload: Workload,
    own_plans: Sequence[Any],
    verified: Sequence[VerifiedPlan],
    stamps: Sequence[Stamps],
    reason: str = "",
) -> Trace:
    """The trace of a run on a card, with stamps in the order of its launches; without spans if there is a `reason`,
    or if the stamps have no times. `own_plans` has the plans of launch ops."""
    if reason:
        return no_trace(reason, simulated=False)
    shared = [(plan.graph.op_indices, plan) for plan in verified]
    own = [*enumerate(own_plans, start=len(workload.tile_ops))]
    try:
        launches = [
            Stamped.of(number, plan.plan, words)
            if isinstance(plan, VerifiedPlan)
            else _stamped(workload, number, *plan, words)
            for number, ((_, plan), words) in enumerate(
                zip(in_launch_order(workload, shared, own), stamps, strict=True)
            )
        ]
        spans = spans_from_stamps(launches)
    except ValueError as error:
        return no_trace(str(error), simulated=False)
    return make_trace(spans, op_names(workload), [len(stamped.ctas) for stamped in launches], simulated=False)


class StampsOfKind(Protocol):
    """The file ``stamps`` of a kind of launch op whose kernels can be traced: its launches have a null field ``trace``,
    which in a traced build is the address of the stamps."""

    def shape_of(self, plan: Any, traced_tasks: int) -> tuple[int, ...]:
        """Shape of the stamps, in 64-bit words, if `traced_tasks` tasks of each CTA are stamped."""

    def stamped_of(self, launch: int, op: int, plan: Any, words: Stamps) -> Stamped:
        """The stamps of an op's launch; `op` is the op's number in a trace.

        Raises:
            ValueError: a task or a CTA recorded no stamps.
        """


def _stamped(workload: Workload, launch: int, op: int, plan: Any, words: Stamps) -> Stamped:
    """Stamps of a launch op's launch, from the file ``stamps`` of its kind; `op` is its number in a trace.

    Raises:
        ValueError: its kernel recorded no stamps.
    """
    one = workload.launch_ops[op - len(workload.tile_ops)]
    if (part := part_of(one.KIND, "stamps")) is None:
        raise ValueError(f"{one.name}: kernels of this kind record no stamps")
    found: Stamped = part.stamped_of(launch, op, plan, words)
    return found


def no_trace(reason: str, *, simulated: bool) -> Trace:
    """Placeholder for a missing trace."""
    return Trace(spans=(), op_names=(), makespan_ns=0, shares=(), tail=0.0, simulated=simulated, reason=reason)


def _earlier(span: TaskSpan, by_ns: int) -> TaskSpan:
    """The span, `by_ns` earlier. If a warp that loads inputs is ahead of those that multiply, a task does not wait."""
    return replace(
        span,
        taken_ns=span.taken_ns - by_ns,
        ready_ns=max(span.ready_ns, span.taken_ns) - by_ns,
        loaded_ns=span.loaded_ns - by_ns,
        computed_ns=span.computed_ns - by_ns,
        stored_ns=span.stored_ns - by_ns,
    )


def _shares(name: str, spans: list[TaskSpan]) -> OpShares:
    """How an op's time is divided. If weights arrived while a task still waited for signals, it had nothing to load."""
    wait = sum(span.ready_ns - span.taken_ns for span in spans)
    load = sum(max(0, span.loaded_ns - span.ready_ns) for span in spans)
    compute = sum(span.computed_ns - max(span.ready_ns, span.loaded_ns) for span in spans)
    store = sum(span.stored_ns - span.computed_ns for span in spans)
    total = (wait + load + compute + store) or 1
    return OpShares(op=name, wait=wait / total, load=load / total, compute=compute / total, store=store / total)


def _tail(spans: tuple[TaskSpan, ...], num_ctas: Sequence[int]) -> float:
    """Idle time after the CTAs' last tasks, relative to all CTAs' time; a CTA without a task is idle throughout."""
    last_ns: defaultdict[int, dict[int, int]] = defaultdict(dict)
    begin_ns: dict[int, int] = {}
    for span in spans:
        lasts = last_ns[span.launch]
        lasts[span.cta] = max(lasts.get(span.cta, span.stored_ns), span.stored_ns)
        begin_ns[span.launch] = min(begin_ns.get(span.launch, span.taken_ns), span.taken_ns)
    idle = total = 0
    for launch, lasts in last_ns.items():
        end_ns = max(lasts.values())
        lasting_ns = end_ns - begin_ns[launch]
        idle += sum(end_ns - last for last in lasts.values()) + (num_ctas[launch] - len(lasts)) * lasting_ns
        total += num_ctas[launch] * lasting_ns
    return idle / total if total else 0.0


def trace_metrics(trace: Trace) -> tuple[Metric, ...]:
    """Where the time went, as figures of a trial; empty if there is no trace."""
    if trace.reason:
        return ()
    shares = tuple(
        Metric(tag=f"{phase}_share.{op.op}", unit="", value=getattr(op, phase))
        for op in trace.shares
        for phase in ("wait", "load", "compute", "store")
    )
    return (
        *shares,
        Metric(tag="tail_share", unit="", value=trace.tail),
        Metric(tag="traced_makespan", unit="us", value=trace.makespan_ns / 1e3),
    )
