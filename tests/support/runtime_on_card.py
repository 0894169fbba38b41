"""The runtime's guarantees on a GPU, as figures that tests and benchmarks compare with their bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy

from tests.support.arrays_on_card import UNTOUCHED, Operands, operands
from tests.support.packs_on_card import kernel_on_card, pack_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.runtime import Pack, load
from tuner.workers.builder.nvrtc import Builder


def candidate(tiling: Tiling, kind: PlanKind, assignment: Assignment = Assignment.STATIC) -> Candidate:
    """A tiling in its simplest order."""
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=assignment)
    return Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering))


def workload(m: int, dtype: Dtype = Dtype.FP16, *, gated: bool = True, d: int = 512, hidden: int = 1024) -> Workload:
    """An FFN with SiLU."""
    return ffn_pair(m=m, d_in=d, d_hidden=hidden, d_out=d, dtype=dtype, activation=Activation.SILU, gated=gated)


def long_and_narrow() -> Workload:
    """Few CTAs with long tasks, so that two launches fit a GPU at once."""
    return ffn_pair(m=16, d_in=16384, d_hidden=512, d_out=512, activation=Activation.SILU)


@contextmanager
def opened(
    builder: Builder, gpu: Gpu, folder: Path, asked: Workload, chosen: Candidate, **options: Any
) -> Iterator[tuple[Pack, Operands]]:
    """A pack of one kernel, and operands for it."""
    pack = load(pack_of(folder, kernel_on_card(builder, gpu, asked, chosen, **options)))
    cupy.cuda.Device().synchronize()
    assert pack.check() == ""
    try:
        yield pack, operands(asked)
    finally:
        cupy.cuda.Device().synchronize()
        pack.close()


@dataclass(frozen=True, kw_only=True)
class EveryRowCount:
    """The outcome for all row counts."""

    #: The largest relative error, divided by the tolerance of the type.
    worst: float
    #: The row count with that error.
    worst_rows: int
    #: Elements after the last row that were written, over all row counts.
    touched: int


def every_row_count(pack: Pack, of: Operands, most: int) -> EveryRowCount:
    """Compares 1 to `most` rows with float64."""
    ffn, errors, touched = pack.bind(of.weights), [], 0
    for rows in range(1, most + 1):
        y = of.output(rows + 8)
        ffn(of.x[:rows], out=y[:rows])
        errors.append(of.rel_error(y, rows) / of.workload.dtype.row.max_rel_error)
        touched += int((y[rows:] != UNTOUCHED).sum())
    assert pack.aborts() == []
    worst = max(errors)
    return EveryRowCount(worst=worst, worst_rows=1 + errors.index(worst), touched=touched)


def rows_that_depend_on_others(pack: Pack, of: Operands, most: int) -> int:
    """Rows whose bits differ from those of the row computed alone, over all row counts, first and last position."""
    ffn, wanted = pack.bind(of.weights), of.output(most)
    for row in range(most):
        ffn(of.x[row : row + 1], out=wanted[row : row + 1])
    count = 0
    for rows in range(1, most + 1):
        y = of.output(rows)
        ffn(of.x[:rows], out=y)
        count += int((y != wanted[:rows]).any(axis=1).sum())
        turned = cupy.ascontiguousarray(of.x[:rows][::-1])
        ffn(turned, out=y)
        count += int((y[::-1] != wanted[:rows]).any(axis=1).sum())
    assert pack.aborts() == []
    return count


def differing_layers(pack: Pack, of: Operands, *, layers: int, replays: int) -> int:
    """Layers of one graph whose final output differs from that of the first replay."""
    rows = of.workload.tile_ops[0].m
    ffn, stream = pack.bind(of.weights), cupy.cuda.Stream(non_blocking=True)
    outputs = [of.output(rows) for _ in range(layers)]
    with stream:
        ffn(of.x, out=outputs[0])
        stream.begin_capture()
        x = of.x
        for y in outputs:
            x = ffn(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        first = [y.copy() for y in outputs]
        assert of.rel_error(first[0], rows) <= of.workload.dtype.row.max_rel_error
        for _ in range(replays):
            graph.launch(stream)
    stream.synchronize()
    assert pack.aborts() == []
    return sum(not bool((a == b).all()) for a, b in zip(first, outputs, strict=True))


def errors_of_two_strands(pack: Pack, of: Operands, launches: int = 200) -> list[float]:
    """The relative errors of two streams with separate workspaces, over the tolerance."""
    strands = [pack.bind(of.weights, strand=strand) for strand in range(2)]
    streams, rows = [cupy.cuda.Stream(non_blocking=True) for _ in strands], of.workload.tile_ops[0].m
    outputs = [of.output(rows) for _ in strands]
    for _ in range(launches):
        for ffn, stream, y in zip(strands, streams, outputs, strict=True):
            ffn(of.x, out=y, stream=stream.ptr)
    cupy.cuda.Device().synchronize()
    assert pack.aborts() == []
    return [of.rel_error(y, rows) / of.workload.dtype.row.max_rel_error for y in outputs]


def shared_workspace(pack: Pack, of: Operands) -> tuple[list[str], float]:
    """Two streams on one workspace: the report, and the relative error over the tolerance after a reset."""
    rows, ffn = of.workload.tile_ops[0].m, pack.bind(of.weights)
    streams, y = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], of.output(rows)
    for _ in range(50):
        for stream in streams:
            ffn(of.x, out=y, stream=stream.ptr)
    cupy.cuda.Device().synchronize()
    sentences = pack.aborts()
    pack.reset()
    assert pack.aborts() == []
    for _ in range(20):
        ffn(of.x, out=y)
    cupy.cuda.Device().synchronize()
    assert pack.aborts() == []
    return sentences, of.rel_error(y, rows) / of.workload.dtype.row.max_rel_error


#: Lets the next launch begin immediately, works for a while, then writes the weights.
WRITER = r"""
extern "C" __global__ void write(unsigned short* to, const unsigned short* from, long long count, long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
  const long long step = gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) to[i] = from[i];
}
"""


def wrong_after_a_writer(pack: Pack, of: Operands, *, safe_weights: bool, no_pdl: bool, launches: int = 60) -> int:
    """Launches whose result does not reflect the weights that a kernel wrote just before."""
    rows, ffn = of.workload.tile_ops[0].m, pack.bind(of.weights, safe_weights=safe_weights)
    write = cupy.RawKernel(WRITER, "write", options=("--std=c++17",))
    sources = [operands(of.workload, seed) for seed in (1, 2, 3)]
    wanted = []
    for source in sources:
        of.weights.w1[...] = source.weights.w1
        cupy.cuda.Device().synchronize()
        wanted.append(ffn(of.x, out=of.output(rows)).copy())
    wrong = 0
    for turn in range(launches):
        y, w1 = of.output(rows), of.weights.w1
        write((32,), (256,), (w1, sources[turn % 3].weights.w1, w1.size, 100_000))
        ffn(of.x, out=y, no_pdl=no_pdl)
        wrong += not bool((y == wanted[turn % 3]).all())
    return wrong


@dataclass(frozen=True, kw_only=True)
class InjectedAbort:
    """An abort and its consequences."""

    #: Seconds until it was reported.
    reported_s: float
    sentences: list[str]
    #: The relative error after the reset, divided by the tolerance.
    error_after: float


def injected_abort(pack: Pack, of: Operands) -> InjectedAbort:
    """A launch whose waits never end, because its workspace claims more launches than have posted."""
    rows, ffn = of.workload.tile_ops[0].m, pack.bind(of.weights)
    y = of.output(rows)
    ffn(of.x, out=y)
    cupy.cuda.Device().synchronize()
    (prepared,) = pack._prepared.values()
    workspace = prepared._memory
    begin = -workspace.data.ptr % 256
    drawn = workspace[begin : begin + 8].view(cupy.uint64)
    drawn += 1_000_000
    cupy.cuda.Device().synchronize()
    begin_s = time.monotonic()
    ffn(of.x, out=y)
    while not pack.aborts() and time.monotonic() - begin_s < 5:
        time.sleep(0.01)
    reported_s, sentences = time.monotonic() - begin_s, pack.aborts()
    pack.reset()
    assert pack.aborts() == []
    ffn(of.x, out=y)
    cupy.cuda.Device().synchronize()
    return InjectedAbort(
        reported_s=reported_s,
        sentences=sentences,
        error_after=of.rel_error(y, rows) / of.workload.dtype.row.max_rel_error,
    )
