"""Graphs of many launches, timed alternately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.common.report import driver_version
from tuner.core.trial.stats import median
from tuner.errors import WorkerError

#: Bytes of an array that is read to measure a card's read rate, and the number of reads.
_READ_BYTES, _READS = 1 << 31, 12
#: Delay before a sample, SM cycles: about 200 us, four times the host's time for a replay.
_DELAY_CYCLES = 360_000
#: Maximum attempts at a sample if its replay comes only after the delay.
_MAX_TAKES = 9


def machine() -> dict[str, Any]:
    """The card's facts in a report, for programs that only use PyTorch."""
    named = {"gpu": torch.cuda.get_device_name(), "driver": driver_version()}
    return named | {"cuda": str(torch.version.cuda), "torch": torch.__version__}


def read_bytes_per_s() -> float:
    """The memory's read rate: the fastest of a few sums over an array larger than any cache."""
    array = torch.rand(_READ_BYTES // 4, device="cuda")
    graphs = {"sum": captured([array.sum]), "most": captured([array.amax])}
    us = samples_us(graphs, 1, _READS)
    return _READ_BYTES / min(min(found) for found in us.values()) * 1e6


def captured(launches: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """Captures all launches in one graph, after running them twice. (`torch.cuda.graph` would collect garbage first,
    each time.)
    """
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for launch in launches[:2]:
            launch()
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            for launch in launches:
                launch()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


def samples_us(graphs: dict[str, torch.cuda.CUDAGraph], num_launches: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per launch for each round; the graphs alternate, and each round begins with a different one.

    Raises:
        RuntimeError: the host was late with every replay of a sample.
    """
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken_us = sample_us(graphs[name])
            if turn >= 2:
                samples[name].append(taken_us / num_launches)
    return samples


def fastest(algorithms: Sequence[Sequence[Callable[[], object]]], rounds: int) -> int:
    """The fastest algorithm of a library, with the same number of launches for each.

    Raises:
        WorkerError: the library refuses all of them.
    """
    graphs = dict[str, torch.cuda.CUDAGraph]()
    for number, launches in enumerate(algorithms):
        try:
            launches[0]()
        except WorkerError:
            continue  # in the list, but refused at the launch
        graphs[str(number)] = captured(launches)
    if not graphs:
        raise WorkerError("the library refuses every algorithm in its list")
    samples = samples_us(graphs, len(algorithms[0]), rounds)
    return int(min(samples, key=lambda name: median(samples[name])))


def sample_us(graph: torch.cuda.CUDAGraph) -> float:
    """A sample of one replay. A delay hides the host's launch time; a sample that began after its delay is repeated
    with a longer delay, since the host needs longer for a graph of many kernels."""
    for take in range(_MAX_TAKES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_DELAY_CYCLES << min(take, 4))
        before.record()
        graph.replay()
        is_late = before.query()
        after.record()
        after.synchronize()
        if not is_late:
            return float(before.elapsed_time(after)) * 1e3
    raise RuntimeError(f"the host was late with {_MAX_TAKES} replays in a row: other programs occupy its cores")
