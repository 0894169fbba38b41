"""A verified plan and the catalogue's costs -> a timeline: who ran what when, who waited, what came from DRAM.

List scheduling (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969): each CTA takes
its next task, from its queue or by ticket, as soon as it is free, and starts it once its waits are over. A task's time
is a roofline (Williams et al., CACM 52(4), 2009) over resources that are shared first come, first served: the DRAM by
all CTAs, tensor cores, shared memory and L2 port by the CTAs of an SM; and never less than what the bytes in flight
allow (Little's law: stages x stage bytes per latency). The L2 keeps the operand panels read last, so the walk matters.

Pure and deterministic. Meant to rank orders and to stand in for a card, not to predict microseconds.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.core.gpu import Gpu
from tuner.core.plan import STATIC
from tuner.core.progress import Board, Protocol
from tuner.core.schedule import warp_grid
from tuner.core.tiles import TileGraph, product_tile
from tuner.core.verify import VerifiedPlan, occupancy
from tuner.core.workload import ROW_SCALE_BYTES

#: Share of the data sheet's DRAM rate that a stream of reads attains.
DRAM_EFFICIENCY = 0.92
#: Source: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024 (loaded latencies).
DRAM_LATENCY_US = 0.75
L2_LATENCY_US = 0.25
#: Source: NVIDIA architecture white papers: 128 bytes of shared memory and 64 bytes of L2 per clock and SM.
SMEM_BYTES_PER_CLOCK = 128
L2_BYTES_PER_CLOCK = 64
#: Share of an SM's rates that the main loop attains: fitted to the trials of benchmarks/results/h200/first_trials.json.
SM_EFFICIENCY = 0.65
#: Start of a launch in a graph, until the first task is taken.
LAUNCH_US = 2.0
#: Per task: reading its words, addresses, epilogue, barriers.
TASK_US = 0.2
#: Atomic round trip and broadcast of a ticket.
TICKET_US = 0.4
#: A poll that finds the signals set, and each further pass over as many signals as there are threads.
POLL_US = 0.5
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


class L2:
    """Least recently used panels; `touch` answers the bytes that had to come from DRAM."""

    def __init__(self, capacity_bytes: int) -> None:
        self._free = capacity_bytes
        self._panels: OrderedDict[int, int] = OrderedDict()

    def touch(self, panel: int, size_bytes: int) -> int:
        if panel in self._panels:
            self._panels.move_to_end(panel)
            return 0
        self._panels[panel] = size_bytes
        self._free -= size_bytes
        while self._free < 0:  # a panel larger than the cache evicts itself
            self._free += self._panels.popitem(last=False)[1]
        return size_bytes


@dataclass(frozen=True, kw_only=True)
class _OpCosts:
    """What the tiles of one op cost, by tile row and tile column."""

    #: [tile row] (panel, bytes) of the rows of A that the tile reads.
    a_panels: list[list[tuple[int, int]]]
    #: [tile col] panel and bytes of its weights and bias.
    w_panels: list[tuple[int, int]]
    #: [tile row] the panel of the output that its tiles write, and its bytes; None where the output leaves.
    out_panels: list[tuple[int, int]] | None
    #: [tile row], [tile col]: clipped extents.
    rows: list[int]
    cols: list[int]
    #: Bytes that pass through DRAM once and are of no use after: the output where it leaves, and the residual, per
    #: element of the tile; the row scale, per row.
    once_bytes: int
    once_row_bytes: int
    #: Time on the SM's own units.
    busy_us: float
    #: Stages of the main loop over stages in flight.
    turns: float


class _Panels:
    """Numbers for the panels of all tensors."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}
        self._count = 0

    def first(self, tensor: str, height: int, num_panels: int) -> int:
        """The number of the tensor's first panel, cut at `height` rows."""
        key = (tensor, height)
        if key not in self._first:
            self._first[key] = self._count
            self._count += num_panels
        return self._first[key]


def _extents(size: int, tile: int) -> list[int]:
    return [min(tile, size - begin) for begin in range(0, size, tile)]


def _op_costs(graph: TileGraph, op_index: int, gpu: Gpu, panels: _Panels) -> _OpCosts:
    op, tile = graph.workload.ops[op_index], graph.tiling.tiles[op_index]
    product = product_tile(op, tile)
    size = graph.workload.dtype.size_bytes
    rows, cols = _extents(op.m, tile.m), _extents(op.n, tile.n)
    edge = graph.edges_into(op_index)
    if edge is None:
        first = panels.first(op.source, tile.m, len(rows))
        a_panels = [[(first + row, extent * op.k * size)] for row, extent in enumerate(rows)]
    else:
        source, height = graph.workload.ops[edge.producer], graph.tile_ms[edge.producer]
        heights = _extents(source.m, height)
        first = panels.first(source.name, height, len(heights))
        whole = [(first + row, extent * op.k * size) for row, extent in enumerate(heights)]
        a_panels = [whole[a:b] for a, b in zip(edge.first.tolist(), edge.last.tolist(), strict=True)]
    first = panels.first(f"{op.name}.weight", tile.n, len(cols))
    w_panels = [(first + col, extent * op.rows_per_column * (op.k + op.bias) * size) for col, extent in enumerate(cols)]
    out_panels = None
    if graph.workload.consumers_of(op_index):
        first = panels.first(op.name, tile.m, len(rows))
        out_panels = [(first + row, extent * op.n * size) for row, extent in enumerate(rows)]
    depth = -(-op.k // tile.k)
    warps_m, warps_n = warp_grid(tile, graph.tiling.num_warps, op.rows_per_column) or (1, 1)
    flops = 2 * product.m * product.n * depth * product.k
    # Each warp reads its own fragments: warp_m + warp_n rows, over all warps of the CTA.
    smem_bytes = (product.m * warps_n + product.n * warps_m) * depth * product.k * size
    l2_bytes = (product.m + product.n) * depth * product.k * size
    clocks = max(smem_bytes / SMEM_BYTES_PER_CLOCK, l2_bytes / L2_BYTES_PER_CLOCK)
    return _OpCosts(
        a_panels=a_panels,
        w_panels=w_panels,
        out_panels=out_panels,
        rows=rows,
        cols=cols,
        once_bytes=((out_panels is None) + op.residual) * size,
        once_row_bytes=op.row_scale * ROW_SCALE_BYTES,
        busy_us=max(1e6 * flops * gpu.num_sms / gpu.tensor_flops_per_s, clocks / gpu.clock_mhz) / SM_EFFICIENCY,
        turns=depth / (graph.tiling.num_stages - 1),
    )


class _Machine:
    """The shared resources, and when each is free next."""

    def __init__(self, graph: TileGraph, gpu: Gpu) -> None:
        panels = _Panels()
        self.costs = {op: _op_costs(graph, op, gpu, panels) for op in graph.op_indices}
        self.num_sms = gpu.num_sms
        self.us_per_byte = 1e6 / (gpu.dram_bytes_per_s * DRAM_EFFICIENCY)
        self.l2 = L2(gpu.l2_bytes)
        self.dram_free_us = 0.0
        self.sm_free_us = [0.0] * gpu.num_sms
        self.dram_bytes = self.l2_hit_bytes = 0
        self._keep_last_launch(graph, gpu)

    def _keep_last_launch(self, graph: TileGraph, gpu: Gpu) -> None:
        """What an earlier launch of the same workload wrote is in the L2, if it takes at most half of it."""
        for op in graph.op_indices:
            producer = graph.workload.producer_of(op)
            if producer is None or producer in graph.op_indices:
                continue
            held = [panel for row in self.costs[op].a_panels for panel in row]
            if sum(size for _, size in held) <= gpu.l2_bytes // 2:
                for panel, size in held:
                    self.l2.touch(panel, size)

    def run(self, op: int, row: int, col: int, cta: int, start_us: float) -> tuple[float, float, float]:
        """If its CTA starts it now: when the tile's first operands have come, when it is computed, when stored."""
        cost = self.costs[op]
        touch = self.l2.touch
        missed = read = 0
        for panel, size in cost.a_panels[row]:
            read += size
            missed += touch(panel, size)
        panel, size = cost.w_panels[col]
        read += size
        missed += touch(panel, size)
        self.l2_hit_bytes += read - missed
        latency_us = DRAM_LATENCY_US if missed else L2_LATENCY_US
        missed += cost.rows[row] * (cost.cols[col] * cost.once_bytes + cost.once_row_bytes)
        if cost.out_panels is not None:
            touch(*cost.out_panels[row])
        self.dram_bytes += missed
        if self.dram_free_us < start_us:
            self.dram_free_us = start_us
        self.dram_free_us += missed * self.us_per_byte
        sm = cta % self.num_sms
        sm_us = max(self.sm_free_us[sm], start_us) + cost.busy_us
        self.sm_free_us[sm] = sm_us
        streamed_us = max(self.dram_free_us if missed else 0.0, sm_us, start_us + cost.turns * latency_us)
        computed_us = streamed_us + latency_us
        return start_us + latency_us, computed_us, computed_us + TASK_US


def simulate(plan: VerifiedPlan) -> Timeline:
    """The timeline of one launch, cold but for what an earlier launch of the same workload wrote.

    One of two launches that share their signals is drawn as if the other one had ended.
    """
    words, gpu = plan.plan.without_waits() if plan.is_part else plan.plan, plan.gpu
    machine, protocol = _Machine(plan.graph, gpu), Protocol(words)
    board = Board(protocol)
    static = words.assignment == STATIC
    queues = words.queues.tolist()
    # CTAs that do not fit at once would start when others leave, which is when no ticket is left.
    num_ctas = words.num_ctas if static else min(words.num_ctas, gpu.num_sms * occupancy(plan.resources, gpu))
    heads, ends = (queues[:-1], queues[1:]) if static else ([0], [words.num_tasks])
    take_us = 0.0 if static else TICKET_US
    tiles, poll_us = words.tasks[:, :3].tolist(), _poll_costs(plan)
    held, begun, running = [-1] * num_ctas, [0.0] * num_ctas, [False] * num_ctas
    rows = []
    events = [(LAUNCH_US, cta) for cta in range(num_ctas)]  # a task ends, a wait is over, or the launch begins
    while events:
        now, cta = heapq.heappop(events)
        if running[cta]:
            for waiter in board.complete(held[cta]):
                heapq.heappush(events, (now, waiter))
            running[cta], held[cta] = False, -1
        task = held[cta]
        if task < 0:
            queue = cta if static else 0
            task = heads[queue]
            if task >= ends[queue]:
                continue
            heads[queue] = task + 1
            held[cta], begun[cta] = task, now
        if board.parks(cta, task):
            continue
        begin_us = begun[cta] + take_us
        start_us = max(now, begin_us) + poll_us[task]
        op, row, col = tiles[task]
        loaded_us, computed_us, end_us = machine.run(op, row, col, cta, start_us)
        if protocol.post_of[task] >= 0:
            end_us += POST_US
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
    passes = np.concatenate(([0], np.cumsum(-(-(waits[:, 1] - waits[:, 0]) // plan.resources.num_threads))))
    per_task = passes[plan.plan.tasks[:, 4]] - passes[plan.plan.tasks[:, 3]]
    costs: list[float] = (POLL_US * per_task).tolist()
    return costs
