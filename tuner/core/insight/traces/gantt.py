"""A trace as columns: what ran where and when, what waited for what, and the sums per op and per SM.

A trace from a card and a forecast have the same form here, so that they can be drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tuner.core.insight.traces.forecast_trace import OwnForecast, SharedForecast, forecast_launches
from tuner.core.insight.traces.tracing import op_names
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.trial.reports.inspection import TaskSpan, Trace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Columns of a task, in order: its identity, where it ran, and its five times, nanoseconds.
COLUMNS = ("launch", "op", "tile_m", "tile_n", "cta", "sm", "taken", "ready", "loaded", "computed", "stored")
_FIRST_TIME = COLUMNS.index("taken")
#: The phases of a task, each between two consecutive times.
PHASES = ("wait", "load", "compute", "store")


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """Which tasks wait for which: a task posts to at most one signal, and waits for ranges of signals."""

    #: [task] the signal that it posts to; -1 if there is none.
    posts: Ints
    #: [task, 2] its waits, half-open.
    waits_of: Ints
    #: [wait, 2] signals, half-open.
    waits: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Gantt:
    """One run of a candidate, task by task in the order of launch and plan."""

    #: [task, 11] see `COLUMNS`; times are nanoseconds since the first task started.
    tasks: Ints
    op_names: tuple[str, ...]
    num_sms: int
    #: CTAs of each launch.
    num_ctas: tuple[int, ...]
    #: None if the plans are no longer known.
    signals: Signals | None
    #: Whether the run was simulated, without a card.
    simulated: bool

    @property
    def makespan_ns(self) -> int:
        """From the start of the first task to the end of the last."""
        return int(self.tasks[:, -1].max()) if len(self.tasks) else 0

    def shares(self) -> dict[str, dict[str, float]]:
        """Op -> phase -> share of the time that CTAs spent on the op; zeros for an op without tasks."""
        times = np.diff(self.tasks[:, _FIRST_TIME:], axis=1)
        found = {}
        for op, name in enumerate(self.op_names):
            sums = times[self.tasks[:, 1] == op].sum(axis=0)
            total = max(1, int(sums.sum()))
            found[name] = {phase: float(one) / total for phase, one in zip(PHASES, sums, strict=True)}
        return found

    def per_sm(self) -> list[tuple[int, int, dict[str, int]]]:
        """Per SM with tasks: its number, its tasks, and the nanoseconds its CTAs spent in each phase."""
        times, sms = np.diff(self.tasks[:, _FIRST_TIME:], axis=1), self.tasks[:, 5]
        rows = []
        for sm in np.unique(sms).tolist():
            mine = sms == sm
            sums = times[mine].sum(axis=0).tolist()
            rows.append((sm, int(mine.sum()), dict(zip(PHASES, sums, strict=True))))
        return rows

    def longest_waits(self, most: int) -> list[tuple[int, int]]:
        """The `most` longest-waiting tasks, longest first, each with the last task it waited for, or -1 if unknown."""
        waited = self.tasks[:, 7] - self.tasks[:, 6]
        first = np.argsort(-waited, kind="stable")[:most]
        return [(int(task), self.last_awaited(int(task))) for task in first if waited[task] > 0]

    def last_awaited(self, task: int) -> int:
        """The last of the tasks that this one waited for; -1 if there is none."""
        if self.signals is None:
            return -1
        begin, end = self.signals.waits_of[task].tolist()
        awaited = np.zeros(len(self.tasks), dtype=bool)
        for low, high in self.signals.waits[begin:end].tolist():
            awaited |= (self.signals.posts >= low) & (self.signals.posts < high)
        who = np.flatnonzero(awaited)
        return int(who[np.argmax(self.tasks[who, -1])]) if who.size else -1


def signals_of(plans: Sequence[Plan], *, is_shared: bool) -> Signals:
    """The signals of all launches, numbered separately unless the launches share them."""
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
    """The columns of a recorded trace; `plans` is empty if they are no longer known."""
    spans = sorted(trace.spans, key=lambda span: (span.launch, span.task))
    tasks = _table_of(spans)
    # Weights may have arrived while a task still waited for signals: then nothing is left to load once it is ready.
    tasks[:, _FIRST_TIME:] = np.maximum.accumulate(tasks[:, _FIRST_TIME:], axis=1)
    num_products = len(plans[0].graph.workload.tile_ops) if plans else len(trace.op_names)
    is_own = tasks[:, 1] >= num_products
    is_known = bool(plans) and sum(plan.plan.num_tasks for plan in plans) == np.count_nonzero(~is_own)
    num_ctas = [
        int(tasks[tasks[:, 0] == launch, 4].max(initial=-1)) + 1 for launch in range(1 + max(tasks[:, 0], default=0))
    ]
    if is_known:
        shared = sorted(set(range(len(num_ctas))) - set(tasks[is_own, 0].tolist()))
        for launch, plan in zip(shared, plans, strict=True):
            num_ctas[launch] = plan.plan.num_ctas
    return Gantt(
        tasks=tasks,
        op_names=trace.op_names,
        num_sms=max(num_sms, int(tasks[:, 5].max(initial=-1)) + 1),
        num_ctas=tuple(num_ctas),
        signals=_signals(plans, is_own) if is_known else None,
        simulated=trace.simulated,
    )


@lru_cache(maxsize=4)
def forecast_gantt(workload: Workload, gpu: Gpu, candidate: Candidate) -> Gantt:
    """The simulator's forecast of our candidate, with its launches in sequence.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
    """
    workload, candidate = launched(workload, candidate)
    plans = plans_for(workload, gpu, candidate)
    tables, num_ctas, own = list[Ints](), list[int](), list[Ints]()
    for launch in forecast_launches(workload, gpu, candidate, plans):
        if isinstance(launch, SharedForecast):
            tables.append(_table(launch, gpu.num_sms))
            num_ctas.append(launch.plan.num_ctas)
        else:
            tables.append(_table_of(launch.spans(gpu.num_sms)))
            num_ctas.append(launch.num_ctas)
        own.append(np.full(len(tables[-1]), isinstance(launch, OwnForecast)))
    tasks = np.concatenate(tables)
    tasks[:, _FIRST_TIME:] -= tasks[:, _FIRST_TIME].min()
    return Gantt(
        tasks=tasks,
        op_names=op_names(workload),
        num_sms=gpu.num_sms,
        num_ctas=tuple(num_ctas),
        signals=_signals(plans, np.concatenate(own)) if plans else None,
        simulated=True,
    )


def _signals(plans: Sequence[VerifiedPlan], is_own: Bools) -> Signals:
    """Signals of all launches. The tasks of a launch op neither post nor wait: stream order orders them.

    Args:
        plans: those of the launches of tile ops.
        is_own: [task] whether it is a launch op's.
    """
    found = signals_of([plan.plan for plan in plans], is_shared=any(plan.is_paired for plan in plans))
    posts = np.full(len(is_own), -1, dtype=np.int64)
    waits_of = np.zeros((len(is_own), 2), dtype=np.int64)
    posts[~is_own], waits_of[~is_own] = found.posts, found.waits_of
    return Signals(posts=posts, waits_of=waits_of, waits=found.waits)


def _table_of(spans: Sequence[TaskSpan]) -> Ints:
    names = [*COLUMNS[:_FIRST_TIME], *(f"{name}_ns" for name in COLUMNS[_FIRST_TIME:])]
    return np.array([*map(attrgetter(*names), spans)], dtype=np.int64).reshape(len(spans), len(COLUMNS))


def _table(launch: SharedForecast, num_sms: int) -> Ints:
    rows = np.array(sorted(launch.timeline.rows, key=lambda row: row[1]), dtype=np.float64)
    table = np.empty((len(rows), len(COLUMNS)), dtype=np.int64)
    table[:, 0] = launch.number
    table[:, 1:4] = launch.plan.tasks[rows[:, 1].astype(np.int64), :3]
    table[:, 4] = rows[:, 0]
    table[:, 5] = table[:, 4] % num_sms
    table[:, _FIRST_TIME:] = np.rint(1e3 * (rows[:, 2:] + launch.begin_us))
    return table
