"""How long: chains of launches in graphs, interleaved with the library round by round, cold by rotation.

A sample is one graph launch of `chain_length` runs on distinct weights, between two events; a delay kernel in front of
the first event keeps the host's launch latency out. Its time over the chain's length is the time of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy

from tuner.core.job import Regime
from workers.gpu.baselines import Runner
from workers.gpu.data import ProblemData

#: SM clock cycles of the delay in front of a sample: about 50 us, more than a graph launch takes the host.
_DELAY_CYCLES = 90_000
#: Idle time before a round in burst, seconds.
_BURST_PAUSE_S = 0.002
#: Load of the same kind in front of every sample in sustained, seconds: the card settles at its power limit.
_SUSTAINED_LOAD_S = 0.08
_FLUSH_CTAS = 1024


class Timer:
    """Times runners over one problem's slots."""

    def __init__(self, data: ProblemData, tools: Any) -> None:
        """`tools` is the module of tools.cu."""
        self._data = data
        self._delay = tools.get_function("tuner_delay")
        self._flush = tools.get_function("tuner_flush")
        self._sink = cupy.zeros(1, dtype=cupy.uint32)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def capture(self, runner: Runner) -> Any:
        """The chain of `runner` as a graph."""
        with self._stream:
            self._stream.begin_capture()
            try:
                for slot in range(self._data.chain_length):
                    runner.enqueue(self._data.slot_ops(slot), self._stream.ptr)
            finally:
                graph = self._stream.end_capture()
        return graph

    def lead_in(self, *, flush: bool) -> None:
        """Enqueues on the current stream what stands in front of a sample: a read of three times the L2, where
        `flush`, and the delay."""
        if flush:
            vectors = self._data.flush_buffer.nbytes // 16
            self._flush((_FLUSH_CTAS,), (256,), (self._data.flush_buffer, cupy.int64(vectors), self._sink))
        self._delay((1,), (1,), (cupy.int64(_DELAY_CYCLES),))

    def sample_us(self, graph: Any) -> float:
        """Time of one run of the chain's, microseconds."""
        with self._stream:
            self.lead_in(flush=self._data.needs_flush)
            self._begin.record(self._stream)
            graph.launch(self._stream)
            self._end.record(self._stream)
        self._end.synchronize()
        return 1e3 * cupy.cuda.get_elapsed_time(self._begin, self._end) / self._data.chain_length  # type: ignore[no-any-return]

    def rounds(self, graphs: Sequence[Any], is_over: Callable[[list[list[float]], float], bool]) -> list[list[float]]:
        """[graph][round] times in microseconds, every graph once a round, the order turned every round.

        `is_over` sees the times so far and the seconds since the start.
        """
        sustained = self._data.problem.objective.regime is Regime.SUSTAINED
        for graph in graphs:
            self.sample_us(graph)  # loads what is loaded lazily; not counted
        times: list[list[float]] = [[] for _ in graphs]
        start = time.perf_counter()
        while not is_over(times, time.perf_counter() - start):
            if not sustained:
                time.sleep(_BURST_PAUSE_S)
                self.sample_us(graphs[0])  # wakes the clocks; not counted
            first = len(times[0]) % len(graphs)
            for i in [*range(first, len(graphs)), *range(first)]:
                if sustained:
                    self._load(graphs[i])
                times[i].append(self.sample_us(graphs[i]))
        return times

    def _load(self, graph: Any) -> None:
        """Keeps the card busy with `graph`, two launches queued at a time so that it never idles."""
        end = time.perf_counter() + _SUSTAINED_LOAD_S
        graph.launch(self._stream)
        while time.perf_counter() < end:
            self._begin.record(self._stream)
            graph.launch(self._stream)
            self._begin.synchronize()
