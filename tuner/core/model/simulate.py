"""From a verified plan and a GPU's rates to a timeline: what runs where and when, what waits, and what comes from DRAM.

List scheduling (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969): each CTA takes
its next task, from its queue or by ticket, as soon as it is free, and starts it once its waits are over. The inputs of
a task come through resources that transfers share equally: the DRAM and the L2 (`bandwidth.py`). They never arrive
faster than the bytes in flight allow (Little's law: stages x stage bytes per latency, in each ring). The L2 keeps the
most recently used operand panels, so the order matters; data that another CTA is already fetching arrives with that
CTA's transfer. Then the SM's own units are used, in turn if CTAs share an SM (a roofline: Williams et al., CACM 52(4),
2009), then the epilogue.

A part of a tile writes its sums and arrives; the last part to arrive reads all parts' sums and stores the tile. The
first weights of a task are requested before its wait. An engine that runs ahead starts its next task while the last
stages of the current one are multiplied. If teams of warps alternate, one stores or adds up while the next one
multiplies.

Pure and deterministic. It is meant for ranking orders and as a simulated card, not for predicting microseconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.core.model.caches.polling import Polls
from tuner.core.model.launch import Launch
from tuner.core.model.memory import Memory, Tile
from tuner.core.model.product_launch import product_launch
from tuner.core.model.rates import Rates, rates_of
from tuner.core.model.task_costs import OpCosts, PartCosts
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.order.task_source import TaskSource
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.symbolic_run import Board, Protocol
from tuner.core.proof.verify import VerifiedPlan

#: Relative error that sums of floats may have.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Span:
    """One task on its CTA."""

    #: Index of the task in the plan.
    task: int
    #: When the CTA took it.
    begin_us: float
    #: When its waits were over.
    wait_us: float
    #: When its first operands had arrived.
    loaded_us: float
    #: When its last product was done.
    computed_us: float
    #: When it was stored and posted.
    end_us: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The sequence of events, at the GPU's rates."""

    #: From the launch to the last store, microseconds.
    makespan_us: float
    #: Bytes read from and written to DRAM.
    dram_bytes: int
    #: Bytes read from DRAM, a part of `dram_bytes`.
    dram_read_bytes: int
    #: Written bytes that are still in the L2 at the end.
    late_write_bytes: int
    #: Operand bytes that hit the L2.
    l2_hit_bytes: int
    #: Operand bytes from the L2 to the SMs, and the time that they take if all SMs request.
    link_bytes: int
    link_us: float
    #: (CTA, task, begin, wait over, loaded, computed, end) of every task, by start time.
    rows: tuple[tuple[int, int, float, float, float, float, float], ...]
    #: Number of CTAs that took part.
    num_ctas: int

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """For each CTA, its tasks in order."""
        lanes: list[list[Span]] = [[] for _ in range(self.num_ctas)]
        for cta, task, begin, wait, loaded, computed, end in self.rows:
            span = Span(task=task, begin_us=begin, wait_us=wait, loaded_us=loaded, computed_us=computed, end_us=end)
            lanes[cta].append(span)
        return tuple(map(tuple, lanes))

    @property
    def waited_us(self) -> float:
        """Time that CTAs spent on signals, summed over CTAs."""
        return sum(row[3] - row[2] for row in self.rows)


#: Events of a CTA: a task ends; the CTA turns to its next task, or checks again whether its current one may start; it
#: draws its next task.
_END, _DRAW, _POLL = 0, 1, 2
#: Maximum number of tasks that a CTA has drawn and not begun: `kFeedSlots` in feed.cuh, less the current one.
_MOST_DRAWN = 3


def simulate(
    plan: VerifiedPlan, rates: Rates | None = None, limit_us: float = math.inf, *, is_apart: bool = False
) -> Timeline:
    """The timeline of one launch, with a cold cache except for what an earlier launch of the same workload wrote; with
    `rates`, by default the GPU's. A launch that takes longer than `limit_us` is simulated up to there, and its time
    is infinite. With `is_apart`, its CTAs take SMs as they become free, as in a programmatic launch.

    One of two launches that share signals is simulated as if the other one had ended.
    """
    rates = rates or rates_of(plan.gpu)
    words = plan.plan.without_waits() if plan.is_paired else plan.plan.with_in_band_waits_first()
    launch = product_launch(plan, words, rates, is_apart=is_apart)
    return simulate_launch(words, plan.graph, launch, plan.gpu, rates, polled=plan.plan, limit_us=limit_us)


def simulate_launch(
    plan: Plan,
    graph: TaskGraph,
    launch: Launch,
    gpu: Gpu,
    rates: Rates,
    *,
    polled: Plan | None = None,
    limit_us: float = math.inf,
) -> Timeline:
    """Same as `simulate` for a proven plan of ops of any kind, with the costs in `launch`; `polled` has the waits that
    cost time, if they are not the plan's own."""
    return _Run(plan, polled or plan, graph, launch, gpu, rates).timeline(limit_us)


class _Run:
    """One launch: the CTAs, the signals and the memory, event by event."""

    def __init__(self, words: Plan, polled: Plan, graph: TaskGraph, launch: Launch, gpu: Gpu, rates: Rates) -> None:
        self._rates, self._launch, self._costs = rates, launch, launch.costs
        self._memory = Memory(launch, gpu, rates)
        self._protocol = Protocol(words)
        self._board = Board(self._protocol)
        self._source = TaskSource(words)
        # CTAs that do not fit at first would start when others end; by then no ticket is left.
        self._num_sms = gpu.num_clusters(launch.cluster_size)  # or clusters, each of which computes a task
        fitting = self._num_sms * launch.occupancy
        self.num_ctas = num_ctas = min(words.num_ctas, fitting) if words.assignment == TICKET else words.num_ctas
        is_known = words.assignment in (STATIC, FIRST_WAVE)  # otherwise the first draw takes time
        self._take_us = 0.0 if is_known else rates.ticket_us
        #: Whether CTAs draw tasks before they begin: when at most a ring of weights of the previous one remains to be
        #: requested (feed.cuh). So tasks are bound to CTAs that still wait or multiply.
        self._draws_ahead = words.assignment != STATIC and launch.runs_ahead and launch.num_teams == 1
        #: By CTA: the tasks that it has drawn, in order; and the one to which it has turned.
        self._drawn: list[list[int]] = [[] for _ in range(num_ctas)]
        self._turned_to = [-1] * num_ctas
        self._tiles: list[Tile] = [(op, row, col) for op, row, col in words.tasks[:, :3].tolist()]
        #: [task] its costs, and whether it is a part.
        self._cost_of = _task_costs(words, graph, self._costs)
        self._is_part: list[bool] = (words.tasks[:, 7] > 0).tolist()
        self._polls = Polls(polled, launch.num_pollers, rates.poll_us)
        self._held_stages = words.held_stages
        self._sm_free_us = [0.0] * self._num_sms
        #: Time that the SMs' own units need for all tasks, plus that for which they have waited between tasks.
        self._spent_us = math.fsum(cost.busy_us for cost in self._cost_of)
        #: By CTA: the task whose operands it loads, or -1; when it took that task, when its operands were
        #: requested, and when its polls were over.
        self._held = [-1] * num_ctas
        self._taken_us = [0.0] * num_ctas
        self._start_us = [0.0] * num_ctas
        self._fetched_us = [0.0] * num_ctas
        self._latency_us = [0.0] * num_ctas
        #: By CTA: whether its task is only waiting for the operands of k-steps with later waits.
        self._stalls = [False] * num_ctas
        #: [task] share of its k-steps from its last wait on; 1 if all its waits come before the first step.
        self._last_shares = _last_shares(words, graph)
        #: By CTA: how many tasks it has computed, and when it finished the last one; by its teams of warps, when each
        #: is free.
        self._num_computed = [0] * num_ctas
        self._computed_us = [0.0] * num_ctas
        self._free_us = [[0.0] * launch.num_teams for _ in range(num_ctas)]
        self._rows: list[tuple[int, int, float, float, float, float, float]] = []
        #: Task -> its row and its team, for a part that has not arrived.
        self._arriving: dict[int, tuple[int, int]] = {}
        #: For tiles whose parts all add up: row, CTA and team of each part that has stored its sums.
        self._met: dict[int, list[tuple[int, int, int]]] = {}
        self._events = [(rates.launch_us, _POLL, cta, -1) for cta in range(num_ctas)]

    def timeline(self, limit_us: float) -> Timeline:
        """Runs the launch to its end, or until it will certainly take longer than `limit_us`: that time has passed
        while a task has not begun to compute, or the SMs have waited too long to end in time."""
        events, memory, is_over = self._events, self._memory, False
        most_us = limit_us * self._num_sms * (1 + _ROUNDING)
        dram, link = memory.dram, memory.link
        while True:
            shared = dram if dram.next_us <= link.next_us else link
            if events and events[0][0] <= shared.next_us:
                now_us, kind, cta, task = heapq.heappop(events)
                if kind == _END:
                    self._end(cta, task, now_us)
                elif kind == _POLL:
                    self._poll(cta, now_us)
                elif self._turned_to[cta] == task:
                    self._draw(cta)
            elif (now_us := shared.next_us) < math.inf:
                for cta in memory.end(shared):
                    self._compute(cta, now_us)
            else:
                break
            if self._spent_us > most_us or (now_us > limit_us and len(self._rows) < len(self._tiles)):
                is_over = True
                break
        ends_us = max((row[-1] for row in self._rows), default=self._rates.launch_us)
        return Timeline(
            makespan_us=math.inf if is_over else max(ends_us, self._rates.launch_us + memory.least_us),
            dram_bytes=memory.dram_bytes,
            dram_read_bytes=memory.read_bytes,
            late_write_bytes=memory.late_write_bytes,
            l2_hit_bytes=memory.hit_bytes,
            link_bytes=memory.asked_bytes,
            link_us=memory.passed_bytes / memory.link_bytes_per_us,
            rows=tuple(self._rows),
            num_ctas=self.num_ctas,
        )

    def _poll(self, cta: int, now_us: float) -> None:
        """Lets a CTA turn to its next task, or check the waits of its current one."""
        if self._stalls[cta]:
            self._compute(cta, now_us)
            return
        task = self._held[cta]
        if is_new := task < 0:
            task = self._drawn[cta].pop(0) if self._drawn[cta] else self._source.take(cta)
            if task < 0:
                return
            self._held[cta], self._taken_us[cta], self._turned_to[cta] = task, now_us, task
        tile = self._tiles[task]
        cost = self._cost_of[task]
        if is_new and self._draws_ahead and (steps := self._steps_before_draw(task)) <= self._launch.num_stages:
            freed_us = steps * cost.step_us if self._num_computed[cta] else 0.0  # the previous task fills the ring
            heapq.heappush(self._events, (now_us + self._take_us + freed_us, _DRAW, cta, task))
        if self._board.parks(cta, task, 0):
            if is_new:
                self._memory.ask_ahead(cta, cost, tile, now_us, self._held_stages)
            return
        self._fetched_us[cta] = now_us
        is_cold = self._memory.fetch(cta, cost, tile, now_us)
        self._latency_us[cta] = self._rates.dram_latency_us if is_cold else self._rates.l2_latency_us
        self._start_us[cta] = self._polls.seen_us(task, self._taken_us[cta] + self._take_us, now_us)

    def _compute(self, cta: int, now_us: float) -> None:
        """The last operands of a CTA's task have passed the link: computes when it multiplies, and when it is done. A
        task with later waits requests all of its inputs after its first wait, and pauses before steps whose inputs are
        late."""
        memory = self._memory
        if self._board.parks(cta, self._held[cta]):
            self._stalls[cta] = True
            return
        task, start_us, latency_us = self._held[cta], self._start_us[cta], self._latency_us[cta]
        costs, cost = self._costs[self._tiles[task][0]], self._cost_of[task]
        free_us = self._free_us[cta]
        team = self._num_computed[cta] % len(free_us)
        begin_us = max(self._taken_us[cta], self._computed_us[cta], free_us[team])
        wait_us = max(start_us, begin_us)
        loaded_us = max(start_us + latency_us, begin_us)
        sm = cta % self._num_sms
        sm_us = self._sm_free_us[sm]
        if loaded_us > sm_us:
            self._spent_us += loaded_us - sm_us
            sm_us = loaded_us
        sm_us = self._sm_free_us[sm] = sm_us + cost.busy_us
        turns_us = max(cost.turns * (latency_us + cost.turn_us), cost.inputs_us, self._polls.later_us[task])
        streamed_us = max(now_us, start_us + turns_us) + latency_us + cost.step_us
        from_dram_us = max(0.0, memory.arrived_us.get(cta, 0.0) - self._fetched_us[cta])
        exposed_us = costs.exposed_share * min(cost.busy_us, from_dram_us)
        computed_us = max(sm_us, streamed_us) + exposed_us
        if self._stalls[cta]:
            self._stalls[cta] = False
            left = self._last_shares[task]
            rest_us = self._rates.poll_us + latency_us + (left * cost.busy_us + cost.step_us if left else 0.0)
            computed_us = max(computed_us, now_us + rest_us)
        end_us = computed_us
        if self._is_part[task]:
            share = self._others_share(task)
            end_us += share * costs.slot_us + self._launch.engine.arrival_us
            memory.pass_sums(round(share * costs.slot_bytes), now_us)
            self._arriving[task] = len(self._rows), team
        else:
            end_us += costs.store_us
            if self._protocol.post_of[task] >= 0:
                end_us += costs.post_us
        self._rows.append((cta, task, begin_us, wait_us, loaded_us, computed_us, end_us))
        free_us[team], self._held[cta] = end_us, -1
        self._num_computed[cta], self._computed_us[cta] = self._num_computed[cta] + 1, computed_us
        heapq.heappush(self._events, (end_us, _END, cta, task))
        if self._launch.runs_ahead:
            ring_us = self._launch.num_stages * cost.step_us
            heapq.heappush(self._events, (max(now_us, computed_us - ring_us), _POLL, cta, -1))
            if self._draws_ahead and self._steps_before_draw(task) > self._launch.num_stages:
                heapq.heappush(self._events, (max(now_us, computed_us - 2 * ring_us), _DRAW, cta, task))

    def _steps_before_draw(self, task: int) -> int:
        """k-steps of a task that a CTA requests before it draws the next one."""
        return max(0, self._num_steps(task) - self._launch.num_stages)

    def _num_steps(self, task: int) -> int:
        cost = self._cost_of[task]
        return round(cost.busy_us / cost.step_us) if cost.step_us else 0

    def _draw(self, cta: int) -> None:
        """Draws the next task of a CTA, and those after it: each if a ring of weights suffices for what remains to be
        requested for the one before it."""
        drawn, free = self._drawn[cta], self._launch.num_stages
        for place, task in enumerate([self._turned_to[cta], *[-1] * _MOST_DRAWN][:_MOST_DRAWN]):
            own = self._num_steps(drawn[place - 1] if place else task)
            if place and own - min(own, free) > self._launch.num_stages:
                return
            if len(drawn) == place:
                if (following := self._source.take(cta)) < 0:
                    return
                drawn.append(following)
            free -= own
            if free < 0:
                return

    def _others_share(self, task: int) -> float:
        """The share of a part's sums that it writes for others: all of them, or what other parts finish."""
        return 1 - 1 / self._protocol.num_parts[task] if self._launch.scatters_sums else 1.0

    def _end(self, cta: int, task: int, now_us: float) -> None:
        """Handles the end of a task: it is stored, or the sums of a part are."""
        tile = self._tiles[task]
        row, team = self._arriving.pop(task, (-1, 0))
        if row >= 0 and self._launch.scatters_sums:
            self._met.setdefault(self._protocol.leader_of[task], []).append((row, cta, team))
        if row >= 0 and self._board.is_last(task):
            costs, num_parts = self._costs[tile[0]], self._protocol.num_parts[task]
            finishers = self._met.pop(self._protocol.leader_of[task], [(row, cta, team)])
            each = num_parts / len(finishers)  # sums of parts, which one of them adds up
            read = each * (self._others_share(task) if len(finishers) > 1 else 1.0)
            self._memory.pass_sums(round(costs.slot_bytes * read * len(finishers)), now_us)
            end_us = now_us + self._rates.l2_latency_us + read * costs.slot_us + costs.store_us / len(finishers)
            end_us += costs.part_post_us * (self._protocol.post_of[task] >= 0)
            for own, who, its_team in finishers:
                self._rows[own] = (*self._rows[own][:-1], end_us)
                self._free_us[who][its_team] = max(self._free_us[who][its_team], end_us)
            heapq.heappush(self._events, (end_us, _END, cta, task))
            return
        if not self._is_part[task] or self._board.is_last(task):
            self._memory.store(tile, now_us)
            self._polls.post(self._protocol.post_of[task], now_us)
        for waiter in self._board.complete(task):
            heapq.heappush(self._events, (now_us, _POLL, waiter, -1))
        if not self._launch.runs_ahead:
            heapq.heappush(self._events, (now_us, _POLL, cta, -1))


def _task_costs(plan: Plan, graph: TaskGraph, costs: Mapping[int, OpCosts]) -> list[PartCosts]:
    """[task] cost of its k-steps."""
    kinds = [
        (op, *steps) for op, steps in zip(plan.tasks[:, 0].tolist(), graph.steps_of(plan.tasks).tolist(), strict=True)
    ]
    each = {kind: costs[kind[0]].of(*kind[1:]) for kind in set(kinds)}
    return [each[kind] for kind in kinds]


def _last_shares(plan: Plan, graph: TaskGraph) -> list[float]:
    """[task] share of its k-steps from its last wait on."""
    num_steps = graph.steps_of(plan.tasks)[:, 2]
    shares = np.ones(plan.num_tasks)
    waiting = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])
    last = np.minimum(plan.waits[plan.tasks[waiting, 4] - 1, 4], num_steps[waiting])  # none after an epilogue's wait
    shares[waiting] -= last / num_steps[waiting]
    by_task: list[float] = shares.tolist()
    return by_task
