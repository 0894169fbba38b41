"""A verified plan and the catalogue's costs -> a timeline: who ran what when, who waited, what came from DRAM.

List scheduling (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969): each CTA takes
its next task, from its queue or by ticket, as soon as it is free, and starts it once its waits are over. A task's time
is a roofline (Williams et al., CACM 52(4), 2009) over resources that are shared first come, first served: the DRAM by
all CTAs, tensor cores, shared memory and L2 port by the CTAs of an SM; and never less than what the bytes in flight
allow (Little's law: stages x stage bytes per latency). The L2 keeps the operand panels read last, so the walk matters.
A part of a tile writes its sums and arrives; the one that arrives last reads all parts' sums and stores the tile. An
engine that runs ahead has requested the first weights of a task when its CTA turns to it, and what it need not wait for
comes under the task before.

Pure and deterministic. Meant to rank orders and to stand in for a card, not to predict microseconds.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.core.costs import Panels, op_costs, runs_ahead
from tuner.core.dealer import Dealer
from tuner.core.gpu import Gpu
from tuner.core.plan import STATIC, TICKET
from tuner.core.progress import Board, Protocol
from tuner.core.tiles import TileGraph
from tuner.core.verify import VerifiedPlan, occupancy

#: Share of the data sheet's DRAM rate that a stream of reads attains.
DRAM_EFFICIENCY = 0.92
#: Source: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024 (loaded latencies).
DRAM_LATENCY_US = 0.75
L2_LATENCY_US = 0.25
#: Start of a launch in a graph, until the first task is taken.
LAUNCH_US = 2.0
#: Per task: reading its words, addresses, epilogue, barriers.
TASK_US = 0.2
#: Atomic round trip and broadcast of a ticket.
TICKET_US = 0.4
#: A poll that finds the signals set, and each further pass over as many signals as there are threads that poll.
POLL_US = 0.5
#: Threads that poll where the copying is one warp's work.
WARP = 32
#: Barrier, fence and reduction of a post.
POST_US = 0.5


@dataclass(frozen=True, kw_only=True)
class Span:
    """One task on its CTA."""

    #: Index of the task in the plan.
    task: int
    #: When the CTA took it.
    begin_us: float
    #: When its waits were over.
    wait_us: float
    #: When its first operands had come.
    loaded_us: float
    #: When its last product was done.
    computed_us: float
    #: When it was stored and posted.
    end_us: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What happens when, by the costs of the catalogue."""

    #: From the launch to the last store, microseconds.
    makespan_us: float
    #: Read from and written to DRAM.
    dram_bytes: int
    #: Operand bytes that the L2 had.
    l2_hit_bytes: int
    #: (CTA, task, begin, wait over, loaded, computed, end) of every task, in the order of their starts.
    rows: tuple[tuple[int, int, float, float, float, float, float], ...]
    #: CTAs that took part.
    num_ctas: int

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """Per CTA, its tasks in order."""
        lanes: list[list[Span]] = [[] for _ in range(self.num_ctas)]
        for cta, task, begin, wait, loaded, computed, end in self.rows:
            span = Span(task=task, begin_us=begin, wait_us=wait, loaded_us=loaded, computed_us=computed, end_us=end)
            lanes[cta].append(span)
        return tuple(map(tuple, lanes))

    @property
    def waited_us(self) -> float:
        """Time that CTAs spent on signals, summed over CTAs."""
        return sum(row[3] - row[2] for row in self.rows)


#: Op, tile row, tile column.
Tile = tuple[int, int, int]


class L2:
    """Least recently used panels; `touch` answers the bytes that had to come from DRAM. A panel may come by and by."""

    def __init__(self, capacity_bytes: int) -> None:
        self._free = capacity_bytes
        self._panels: OrderedDict[int, int] = OrderedDict()

    def touch(self, panel: int, size_bytes: int) -> int:
        held = self._panels.pop(panel, 0)
        missed = max(0, size_bytes - held)
        self._panels[panel] = held + missed
        self._free -= missed
        while self._free < 0:  # a panel larger than the cache evicts itself
            self._free += self._panels.popitem(last=False)[1]
        return missed


@dataclass(frozen=True, kw_only=True)
class _Ahead:
    """What a CTA requested of its next task's weights."""

    #: When that is there.
    landed_us: float
    #: Bytes, and of these what had to come from DRAM.
    asked_bytes: int
    missed_bytes: int


_NOTHING = _Ahead(landed_us=0.0, asked_bytes=0, missed_bytes=0)


class _Machine:
    """The shared resources, and when each is free next."""

    def __init__(self, graph: TileGraph, gpu: Gpu) -> None:
        panels = Panels()
        self.costs = {op: op_costs(graph, op, gpu, panels) for op in graph.op_indices}
        self.num_sms = gpu.num_clusters(graph.tiling.cluster_size)  # that compute a task each
        self.us_per_byte = 1e6 / (gpu.dram_bytes_per_s * DRAM_EFFICIENCY)
        self.l2 = L2(gpu.l2_bytes)
        self.dram_free_us = 0.0
        self.sm_free_us = [0.0] * self.num_sms
        self.dram_bytes = self.l2_hit_bytes = 0
        self._ahead: dict[int, _Ahead] = {}
        self._keep_last_launch(graph, gpu)

    def _keep_last_launch(self, graph: TileGraph, gpu: Gpu) -> None:
        """What an earlier launch of the same workload wrote is in the L2, if it takes at most half of it."""
        for op in graph.op_indices:
            producer = graph.workload.producer_of(op)
            if producer is None or producer in graph.op_indices:
                continue
            held = [panel for row in self.costs[op].parts[-1].a_panels for panel in row]
            if sum(size for _, size in held) <= gpu.l2_bytes // 2:
                for panel, size in held:
                    self.l2.touch(panel, size)

    def ask_ahead(self, tile: Tile, part: int, cta: int, asked_us: float) -> None:
        """Requests the first weights of a task, before its inputs are there."""
        cost = self.costs[tile[0]].parts[part]
        left, missed = cost.ahead_bytes, 0
        if not left:
            return
        for panel, size in cost.w_panels[tile[2]]:
            missed += self.l2.touch(panel, min(size, left))
            left -= min(size, left)
        self._pass_dram(missed, asked_us)
        landed_us = max(asked_us + DRAM_LATENCY_US, self.dram_free_us) if missed else asked_us + L2_LATENCY_US
        self._ahead[cta] = _Ahead(landed_us=landed_us, asked_bytes=cost.ahead_bytes - left, missed_bytes=missed)

    def run(
        self, tile: Tile, part: int, cta: int, start_us: float, *, is_hidden: bool = False
    ) -> tuple[float, float, float]:
        """If its CTA starts it now: when the tile's first operands have come, when it is computed, when stored; of a
        part of a tile, when its sums are. `is_hidden`: its operands came under the task before."""
        op, row, col = tile
        cost, ahead = self.costs[op].parts[part], self._ahead.pop(cta, _NOTHING)
        weight_bytes = sum(size for _, size in cost.w_panels[col])
        missed = self._touch(cost.a_panels[row])
        missed += min(self._touch(cost.w_panels[col]), weight_bytes - ahead.asked_bytes)
        self.l2_hit_bytes += weight_bytes + sum(size for _, size in cost.a_panels[row]) - missed - ahead.missed_bytes
        latency_us = DRAM_LATENCY_US if missed else L2_LATENCY_US
        is_whole = cost is self.costs[op].parts[-1]
        missed += self._store(tile) if is_whole else 0
        self._pass_dram(missed, start_us)
        sm = cta % self.num_sms
        sm_us = max(self.sm_free_us[sm], start_us) + cost.busy_us
        self.sm_free_us[sm] = sm_us
        streamed_us = max(self.dram_free_us if missed else 0.0, sm_us, start_us + cost.turns * latency_us)
        first_us = 0.0 if is_hidden else latency_us
        loaded_us = max(start_us + first_us, ahead.landed_us)
        computed_us = max(streamed_us + first_us, loaded_us)
        arrival_us = 0.0 if is_whole else self.costs[op].slot_us + POST_US
        return loaded_us, computed_us, computed_us + TASK_US + arrival_us

    def _touch(self, panels: list[tuple[int, int]]) -> int:
        """Bytes of the panels that must come from DRAM."""
        return sum(self.l2.touch(panel, size) for panel, size in panels)

    def add_up(self, tile: Tile, start_us: float) -> float:
        """When the tile is stored, if the last of its parts arrived now."""
        cost = self.costs[tile[0]]
        self._pass_dram(self._store(tile), start_us)
        return start_us + L2_LATENCY_US + (len(cost.parts) - 1) * cost.slot_us + TASK_US

    def _store(self, tile: Tile) -> int:
        """Bytes that pass through DRAM for a tile's epilogue and its output."""
        op, row, col = tile
        cost = self.costs[op]
        for panel, size in cost.out_panels[row][col] if cost.out_panels is not None else ():
            self.l2.touch(panel, size)
        return cost.rows[row] * (cost.cols[col] * cost.once_bytes + cost.once_row_bytes)

    def _pass_dram(self, num_bytes: int, start_us: float) -> None:
        self.dram_bytes += num_bytes
        self.dram_free_us = max(self.dram_free_us, start_us) + num_bytes * self.us_per_byte


def simulate(plan: VerifiedPlan) -> Timeline:
    """The timeline of one launch, cold but for what an earlier launch of the same workload wrote.

    One of two launches that share their signals is drawn as if the other one had ended.
    """
    words, gpu = plan.plan.without_waits() if plan.is_part else plan.plan, plan.gpu
    machine, protocol = _Machine(plan.graph, gpu), Protocol(words)
    board = Board(protocol)
    dealer = Dealer(words)
    # CTAs that do not fit at once would start when others leave, which is when no ticket is left.
    num_ctas = words.num_ctas
    if words.assignment == TICKET:
        num_ctas = min(num_ctas, machine.num_sms * occupancy(plan.resources, gpu))
    take_us = 0.0 if words.assignment == STATIC else TICKET_US
    tiles: list[Tile] = [(op, row, col) for op, row, col in words.tasks[:, :3].tolist()]
    parts = np.where(words.tasks[:, 7] > 0, words.tasks[:, 6], -1).tolist()
    poll_us = _poll_costs(plan)
    overlaps = runs_ahead(plan.graph.tiling)
    free_us = [LAUNCH_US] * num_ctas  # when its rings have room for the next task's operands
    row_of = [-1] * num_ctas  # of the task that a CTA runs; -1 once it adds parts up, or has none
    held, begun, running = [-1] * num_ctas, [0.0] * num_ctas, [False] * num_ctas
    rows: list[tuple[int, int, float, float, float, float, float]] = []
    events = [(LAUNCH_US, cta) for cta in range(num_ctas)]  # a task ends, a wait is over, or the launch begins
    while events:
        now, cta = heapq.heappop(events)
        if running[cta]:
            if row_of[cta] >= 0 and parts[held[cta]] >= 0 and board.is_last(held[cta]):
                end_us = machine.add_up(tiles[held[cta]], now) + POST_US * (protocol.post_of[held[cta]] >= 0)
                rows[row_of[cta]] = (*rows[row_of[cta]][:-1], end_us)
                row_of[cta] = -1
                heapq.heappush(events, (end_us, cta))
                continue
            for waiter in board.complete(held[cta]):
                heapq.heappush(events, (now, waiter))
            running[cta], held[cta] = False, -1
        task = held[cta]
        if task < 0:
            task = dealer.take(cta)
            if task < 0:
                continue
            held[cta], begun[cta] = task, now
            machine.ask_ahead(tiles[task], parts[task], cta, free_us[cta])
        if board.parks(cta, task):
            continue
        is_hidden = overlaps and free_us[cta] > LAUNCH_US and now == begun[cta]
        begin_us = begun[cta] + (0.0 if is_hidden else take_us)
        start_us = begin_us if is_hidden else max(now, begin_us) + poll_us[task]
        loaded_us, computed_us, end_us = machine.run(tiles[task], parts[task], cta, start_us, is_hidden=is_hidden)
        free_us[cta] = computed_us
        if protocol.post_of[task] >= 0 and parts[task] < 0:
            end_us += POST_US
        row_of[cta] = len(rows)
        rows.append((cta, task, begin_us, start_us, loaded_us, computed_us, end_us))
        running[cta] = True
        heapq.heappush(events, (end_us, cta))
    return Timeline(
        makespan_us=max((row[-1] for row in rows), default=LAUNCH_US),
        dram_bytes=machine.dram_bytes,
        l2_hit_bytes=machine.l2_hit_bytes,
        rows=tuple(rows),
        num_ctas=num_ctas,
    )


def _poll_costs(plan: VerifiedPlan) -> list[float]:
    """[task] time of the polls that find its waits over: threads look at a signal each."""
    waits = plan.plan.waits
    num_pollers = WARP if runs_ahead(plan.graph.tiling) else plan.resources.num_threads
    passes = np.concatenate(([0], np.cumsum(-(-(waits[:, 1] - waits[:, 0]) // num_pollers))))
    per_task = passes[plan.plan.tasks[:, 4]] - passes[plan.plan.tasks[:, 3]]
    costs: list[float] = (POLL_US * per_task).tolist()
    return costs
