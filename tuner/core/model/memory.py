"""Reads and writes of a launch's CTAs: from the DRAM to the L2, and from there to the SMs.

A panel that is not in the L2 is transferred from DRAM; other requests for it wait for that transfer, and nothing is
read twice. Data for an SM passes the link between L2 and SMs. Transfers share the rates of DRAM and link equally.
"""

from __future__ import annotations

from tuner.core.model.caches.bandwidth import FairShare
from tuner.core.model.caches.l2 import L2, LAST
from tuner.core.model.caches.merging import PASSING_SHARE
from tuner.core.model.launch import Launch
from tuner.core.model.rates import Rates
from tuner.core.model.task_costs import L2_BYTES_PER_CLOCK, PartCosts
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.tiling import Engine

#: Op, tile row, tile column.
Tile = tuple[int, int, int]

#: Stands for no transfer and no bytes.
_NOTHING = (-1, 0)


class Memory:
    """DRAM, L2 and link of one launch; CTAs wait for numbered transfers."""

    def __init__(self, launch: Launch, gpu: Gpu, rates: Rates) -> None:
        self._costs, self._merged, self._merged_inputs = launch.costs, launch.merged, launch.merged_inputs
        self._weight_hint = launch.weight_class
        self._input_hints, self._output_hints = launch.input_classes, launch.output_classes
        self._us_per_byte = _dram_us_per_byte(gpu, rates)
        self.dram = FairShare(1 / self._us_per_byte)
        self.link_bytes_per_us = _link_bytes_per_us(gpu, rates)
        self.link = FairShare(self.link_bytes_per_us)
        self._l2 = L2(int(gpu.l2_bytes * rates.l2_capacity_share))
        self._num_transfers = 0
        #: Transfer in progress -> the CTAs that wait for it.
        self._waiting: dict[int, list[int]] = {}
        #: Panel -> the last transfer of a part of it, and that transfer's bytes.
        self._brings: dict[int, tuple[int, int]] = {}
        #: CTA -> bytes of its next task's weights that were requested before its inputs.
        self._asked: dict[int, int] = {}
        #: CTA -> arrival time of its last requested bytes from the DRAM.
        self.arrived_us: dict[int, float] = {}
        #: CTA -> transfers that it waits for.
        self._missing: dict[int, int] = {}
        self.read_bytes = self.asked_bytes = self.output_bytes = self._once_bytes = 0
        #: Requested bytes that pass the link; merged requests count once.
        self.passed_bytes = 0.0
        self._outputs: list[int] = []
        self._evicted_bytes = 0
        self._keep_last_launch(launch, gpu)

    @property
    def dram_bytes(self) -> int:
        """Bytes read and written so far, including outputs that will be written."""
        return self.read_bytes + self._l2.evicted_bytes + self.output_bytes

    @property
    def least_us(self) -> float:
        """Time to move `dram_bytes` at the DRAM's rate."""
        return self.dram_bytes * self._us_per_byte

    @property
    def hit_bytes(self) -> int:
        """Requested bytes of tasks that hit the L2."""
        return self.asked_bytes + self._once_bytes - self.read_bytes

    @property
    def late_write_bytes(self) -> int:
        """Bytes of the outputs that are still in the L2."""
        return sum(self._l2.held(panel) for panel in self._outputs)

    def _keep_last_launch(self, launch: Launch, gpu: Gpu) -> None:
        """The output of an earlier launch of the same workload is in the L2 if it takes at most half of it."""
        for held in launch.written_before:
            if sum(size for _, size in held) <= gpu.l2_bytes // 2:
                for panel, size in held:
                    self._l2.touch(panel, size, LAST)

    def ask_ahead(self, cta: int, cost: PartCosts, tile: Tile, now_us: float, held_stages: int) -> None:
        """Requests the first weights of a task before its inputs arrive, except for `held_stages` stages."""
        self._missing[cta] = 1  # its inputs, until they are requested
        most = max(0, cost.ahead_bytes - held_stages * cost.stage_bytes)
        left, missed, transfer = most, 0, self._num_transfers
        for panel, size in cost.w_panels[tile[2]]:
            wanted = size if size < left else left
            missed += self._read(panel, wanted, self._weight_hint, cta, now_us)
            left -= wanted
        self._asked[cta] = most - left
        self.read_bytes += missed
        if missed:
            self._begin(self.dram, transfer, missed * cost.dram_stretch, now_us)
            self._wait_for(transfer, cta)

    def fetch(self, cta: int, cost: PartCosts, tile: Tile, now_us: float) -> bool:
        """Requests the remaining inputs of a task; returns whether any of them come from the DRAM. The CTA waits for
        them."""
        missed, transfer = 0, self._num_transfers
        asked = self._asked.pop(cta, 0)
        if not asked:
            self._missing[cta] = 1
        for panel, size in cost.w_panels[tile[2]]:
            missed += self._read(panel, size, self._weight_hint, cta, now_us)
        missed = min(missed, cost.w_bytes[tile[2]] - asked)
        input_hint = self._input_hints[tile[0]]
        for panel, size in cost.a_panels[tile[1]]:
            missed += self._read(panel, size, input_hint, cta, now_us)
        total = cost.w_bytes[tile[2]] + cost.a_bytes[tile[1]]
        self.asked_bytes += total
        self.read_bytes += missed
        if missed:
            self._begin(self.dram, transfer, missed * cost.dram_stretch, now_us)
            self._wait_for(transfer, cta)
        weights, inputs = self._merged.get(tile[0], 0.0), self._merged_inputs.get(tile[0], 0.0)
        merged = (1 - PASSING_SHARE) * (weights * cost.w_bytes[tile[2]] + inputs * cost.a_bytes[tile[1]])
        self.passed_bytes += total - merged
        self._begin(self.link, self._num_transfers, (total - merged) * cost.link_stretch, now_us)
        self._waiting[self._num_transfers - 1].append(cta)  # already counted as its inputs
        return missed > 0

    def _read(self, panel: int, num_bytes: int, hint: int, cta: int, now_us: float) -> int:
        """Bytes of a panel that the next transfer must load; if a transfer already loads some, the CTA waits for it."""
        missed = self._l2.touch(panel, num_bytes, hint)
        transfer, brought = self._brings.get(panel, _NOTHING)
        if transfer in self._waiting:
            if missed == num_bytes:  # already evicted; bytes in flight are used when they arrive
                missed -= int(min(missed, brought) * self.dram.left(transfer, now_us))
            self._wait_for(transfer, cta)
        if missed:
            self._brings[panel] = self._num_transfers, missed
        return missed

    def _begin(self, link: FairShare, transfer: int, num_bytes: float, now_us: float) -> None:
        self._num_transfers += 1
        self._waiting[transfer] = []
        link.begin(transfer, num_bytes, now_us)

    def _wait_for(self, transfer: int, cta: int) -> None:
        self._waiting[transfer].append(cta)
        self._missing[cta] += 1

    def store(self, tile: Tile, now_us: float) -> None:
        """Writes a tile to the L2, and adds the DRAM traffic of the epilogue's reads, of outputs that leave, and of
        evicted intermediates."""
        op, row, col = tile
        cost = self._costs[op]
        num_rows, num_columns = cost.rows[row], cost.cols[col]
        num_bytes = num_rows * num_columns * cost.element_bytes
        once = num_rows * (num_columns * cost.once_bytes + cost.once_row_bytes)
        for panel, size, share in cost.out_panels[row][col]:
            if cost.leaves:
                self._l2.touch(panel, size)
                self._outputs.append(panel)
            else:
                self._l2.write(panel, share, size, self._output_hints[op])
        self.read_bytes += once
        self._once_bytes += once
        self.output_bytes += num_bytes * cost.leaves
        through = once + num_bytes * cost.leaves + self._l2.evicted_bytes - self._evicted_bytes
        self._evicted_bytes = self._l2.evicted_bytes
        if through:
            self._begin(self.dram, self._num_transfers, through, now_us)

    def pass_sums(self, num_bytes: int, now_us: float) -> None:
        """Sums of parts, moved to the L2 or back."""
        self._begin(self.link, self._num_transfers, num_bytes, now_us)

    def end(self, shared: FairShare) -> list[int]:
        """Ends the next transfer, on DRAM or the link; returns the CTAs that have everything they waited for."""
        done, now_us = [], shared.next_us
        for cta in self._waiting.pop(shared.end()):
            self._missing[cta] -= 1
            if shared is self.dram:
                self.arrived_us[cta] = now_us
            if not self._missing[cta]:
                done.append(cta)
        return done


def least_memory_us(graph: TileGraph, gpu: Gpu, rates: Rates) -> float:
    """Time that the products of a graph occupy the link with the operands of all tiles, or the DRAM with each of the
    weights once, whichever is more. Other kinds of op are not counted, and all requests that may be merged are."""
    size, tiling = graph.workload.dtype.size_bytes, graph.tiling
    passing = 1 - PASSING_SHARE if tiling.engine is Engine.WGMMA and tiling.cluster_size == 1 else 1.0
    link_bytes = dram_bytes = 0.0
    for index, (rows, columns) in graph.grids.items():
        op = graph.workload.tile_ops[index]
        if op.is_plain_product:
            bits = op.weight_bits(graph.workload.dtype)
            weights = op.n * op.rows_per_column * op.k * bits / 8
            link_bytes += columns * op.m * op.k * size + rows * weights * (passing if rows > 1 else 1.0)
            dram_bytes += weights * rates.dram_stretch(tiling.tiles[index].k * bits)
    return max(link_bytes / _link_bytes_per_us(gpu, rates), dram_bytes * _dram_us_per_byte(gpu, rates))


def _dram_us_per_byte(gpu: Gpu, rates: Rates) -> float:
    return 1e6 / (gpu.dram_bytes_per_s * rates.dram_share)


def _link_bytes_per_us(gpu: Gpu, rates: Rates) -> float:
    return L2_BYTES_PER_CLOCK * gpu.clock_mhz * gpu.num_sms * rates.l2_share
