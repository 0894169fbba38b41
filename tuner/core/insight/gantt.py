"""A trace as columns: who ran what when, who waited for whom, and what that adds up to per op and per SM.

A trace from a card and a forecast have one form here, so that they can be drawn beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tuner.core.insight.tracing import forecast_attentions, op_names
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.plan.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.launch_order import launches_in_front
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.inspection import TaskSpan, Trace

Ints = npt.NDArray[np.int64]

#: Columns of a task, in order: which it is, where it ran, and its five times, nanoseconds.
COLUMNS = ("launch", "op", "tile_m", "tile_n", "cta", "sm", "taken", "ready", "loaded", "computed", "stored")
_FIRST_TIME = COLUMNS.index("taken")
#: The phases of a task lie between neighbouring times.
PHASES = ("wait", "load", "compute", "store")


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """Who waits for whom: a task posts to one signal at most, and waits for ranges of signals."""

    #: [task] the signal that it posts to; -1 for none.
    posts: Ints
    #: [task, 2] its waits, half-open.
    waits_of: Ints
    #: [wait, 2] signals, half-open.
    waits: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Gantt:
    """One run of a candidate, task by task in the order of launch and plan."""

    #: [task, 11] as `COLUMNS` says; times are nanoseconds since the first task was taken.
    tasks: Ints
    op_names: tuple[str, ...]
    num_sms: int
    #: CTAs of each launch.
    num_ctas: tuple[int, ...]
    #: None where the plans are not known any more.
    signals: Signals | None
    #: Whether no card drew it.
    simulated: bool

    @property
    def makespan_ns(self) -> int:
        """From the first task taken to the last one stored."""
        return int(self.tasks[:, -1].max()) if len(self.tasks) else 0

    def shares(self) -> dict[str, dict[str, float]]:
        """Op -> phase -> share of the time that CTAs spent on the op; an op without tasks has zeros."""
        times = np.diff(self.tasks[:, _FIRST_TIME:], axis=1)
        found = {}
        for op, name in enumerate(self.op_names):
            sums = times[self.tasks[:, 1] == op].sum(axis=0)
            total = max(1, int(sums.sum()))
            found[name] = {phase: float(one) / total for phase, one in zip(PHASES, sums, strict=True)}
        return found

    def per_sm(self) -> list[tuple[int, int, dict[str, int]]]:
        """SM, its tasks, and the nanoseconds that its CTAs spent in each phase; SMs without a task are left out."""
        times, sms = np.diff(self.tasks[:, _FIRST_TIME:], axis=1), self.tasks[:, 5]
        rows = []
        for sm in np.unique(sms).tolist():
            mine = sms == sm
            sums = times[mine].sum(axis=0).tolist()
            rows.append((sm, int(mine.sum()), dict(zip(PHASES, sums, strict=True))))
        return rows

    def longest_waits(self, most: int) -> list[tuple[int, int]]:
        """Tasks by the time that they waited, the longest first, and who came last of those that each waited for: a
        task, or -1 where nobody is known."""
        waited = self.tasks[:, 7] - self.tasks[:, 6]
        first = np.argsort(-waited, kind="stable")[:most]
        return [(int(task), self.last_awaited(int(task))) for task in first if waited[task] > 0]

    def last_awaited(self, task: int) -> int:
        """The task that stored last of those that this one waited for; -1 where there is none."""
        if self.signals is None:
            return -1
        begin, end = self.signals.waits_of[task].tolist()
        awaited = np.zeros(len(self.tasks), dtype=bool)
        for low, high in self.signals.waits[begin:end].tolist():
            awaited |= (self.signals.posts >= low) & (self.signals.posts < high)
        who = np.flatnonzero(awaited)
        return int(who[np.argmax(self.tasks[who, -1])]) if who.size else -1


def signals_of(plans: Sequence[Plan], *, is_shared: bool) -> Signals:
    """The signals of all launches under numbers of their own, unless the launches share them."""
    posts, waits_of, waits = [], [], []
    first_signal = first_wait = 0
    for plan in plans:
        own = plan.tasks[:, 5].astype(np.int64)
        posts.append(np.where(own >= 0, own + first_signal, -1))
        waits_of.append(plan.tasks[:, 3:5].astype(np.int64) + first_wait)
        waits.append(plan.waits[:, :2].astype(np.int64) + first_signal)
        first_wait += len(plan.waits)
        first_signal += 0 if is_shared else plan.num_signals
    return Signals(posts=np.concatenate(posts), waits_of=np.concatenate(waits_of), waits=np.concatenate(waits))


def gantt_of_trace(trace: Trace, plans: Sequence[VerifiedPlan], num_sms: int) -> Gantt:
    """A recorded trace; `plans` are empty where they are not known any more."""
    spans = sorted(trace.spans, key=lambda span: (span.launch, span.task))
    tasks = _table_of(spans)
    # Weights may have come in while a task still waited for signals: then nothing is left to load once it is ready.
    tasks[:, _FIRST_TIME:] = np.maximum.accumulate(tasks[:, _FIRST_TIME:], axis=1)
    num_products = len(plans[0].graph.workload.tile_ops) if plans else len(trace.op_names)
    attended = np.flatnonzero(tasks[:, 1] >= num_products)  # in one piece: the launches of attentions
    is_known = bool(plans) and sum(plan.plan.num_tasks for plan in plans) == len(spans) - len(attended)
    num_ctas = [
        int(tasks[tasks[:, 0] == launch, 4].max(initial=-1)) + 1 for launch in range(1 + max(tasks[:, 0], default=0))
    ]
    if is_known:
        own = sorted(set(range(len(num_ctas))) - set(tasks[attended, 0].tolist()))
        for launch, plan in zip(own, plans, strict=True):
            num_ctas[launch] = plan.plan.num_ctas
    return Gantt(
        tasks=tasks,
        op_names=trace.op_names,
        num_sms=max(num_sms, int(tasks[:, 5].max(initial=-1)) + 1),
        num_ctas=tuple(num_ctas),
        signals=_signals(plans, int(attended.min(initial=len(tasks))), len(attended)) if is_known else None,
        simulated=trace.simulated,
    )


@lru_cache(maxsize=4)
def forecast_gantt(workload: Workload, gpu: Gpu, candidate: Candidate) -> Gantt:
    """What the simulator says of a candidate of ours; launches stand one after the other.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    plans = plans_for(workload, gpu, candidate)
    front = launches_in_front(workload, [plan.graph.op_indices for plan in plans])
    tables, num_ctas, begin_us = list[Ints](), list[int](), 0.0
    first = sum(plan.plan.num_tasks for plan in plans[:front])
    for plan in plans[:front]:
        begin_us = _append(tables, num_ctas, plan, begin_us, gpu.num_sms)
    attended, grids, begin_us = forecast_attentions(workload, gpu, candidate, begin_us=begin_us, first_launch=front)
    tables.append(_table_of(attended))
    num_ctas += grids
    for plan in plans[front:]:
        begin_us = _append(tables, num_ctas, plan, begin_us, gpu.num_sms)
    tasks = np.concatenate(tables)
    tasks[:, _FIRST_TIME:] -= tasks[:, _FIRST_TIME].min()
    return Gantt(
        tasks=tasks,
        op_names=op_names(workload),
        num_sms=gpu.num_sms,
        num_ctas=tuple(num_ctas),
        signals=_signals(plans, first, len(attended)) if plans else None,
        simulated=True,
    )


def _append(tables: list[Ints], num_ctas: list[int], plan: VerifiedPlan, begin_us: float, num_sms: int) -> float:
    """The next launch, simulated; when it ends."""
    timeline = simulate(plan)
    tables.append(_table(len(num_ctas), plan.plan, timeline, num_sms, begin_us))
    num_ctas.append(plan.plan.num_ctas)
    return begin_us + timeline.makespan_us


def _signals(plans: Sequence[VerifiedPlan], first: int, count: int) -> Signals:
    """Of all launches, of whose tasks the `count` from number `first` on neither post nor wait: stream order stands for
    it."""
    found = signals_of([plan.plan for plan in plans], is_shared=any(plan.is_paired for plan in plans))
    posts = np.insert(found.posts, first, np.full(count, -1, dtype=np.int64))
    waits_of = np.insert(found.waits_of, first, np.zeros((count, 2), dtype=np.int64), axis=0)
    return Signals(posts=posts, waits_of=waits_of, waits=found.waits)


def _table_of(spans: Sequence[TaskSpan]) -> Ints:
    names = [*COLUMNS[:_FIRST_TIME], *(f"{name}_ns" for name in COLUMNS[_FIRST_TIME:])]
    return np.array([*map(attrgetter(*names), spans)], dtype=np.int64).reshape(len(spans), len(COLUMNS))


def _table(launch: int, plan: Plan, timeline: Timeline, num_sms: int, begin_us: float) -> Ints:
    rows = np.array(sorted(timeline.rows, key=lambda row: row[1]), dtype=np.float64)
    table = np.empty((len(rows), len(COLUMNS)), dtype=np.int64)
    table[:, 0] = launch
    table[:, 1:4] = plan.tasks[rows[:, 1].astype(np.int64), :3]
    table[:, 4] = rows[:, 0]
    table[:, 5] = table[:, 4] % num_sms
    table[:, _FIRST_TIME:] = np.rint(1e3 * (rows[:, 2:] + begin_us))
    return table
