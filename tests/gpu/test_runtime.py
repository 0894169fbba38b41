"""Packs on a card, by the runtime: numbers for every row count, graphs, streams, safe weights, aborts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cases import wgmma
from tests.support.packs_on_card import kernel_on_card, pack_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tolerance import MAX_REL_ERROR
from tuner.core.problem.workload import Activation, Dtype, Workload, ffn_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.runtime import Pack, load
from tuner.workers.builder.nvrtc import Builder

cupy = pytest.importorskip("cupy")

if TYPE_CHECKING:
    from tests.support.arrays_on_card import Operands

MMA = Tiling(tiles=(Tile(m=16, n=64, k=64), Tile(m=16, n=64, k=64)), num_stages=3, num_warps=4)
SIMT = Tiling(engine=Engine.SIMT, tiles=(Tile(m=4, n=8, k=256),) * 2, num_stages=3, num_warps=4)
#: A tiling, the rows that it is made for, and how it is launched: every row count up to these is tried.
LADDERS = {
    "wgmma": (wgmma((64, 64, 64)), 256, PlanKind.FUSED_PDL, Assignment.STATIC),
    "wgmma tickets": (wgmma((16, 64, 64)), 64, PlanKind.FUSED, Assignment.TICKET),
    "wgmma swapped": (wgmma((16, 64, 64), swap_ab=True), 64, PlanKind.TWO_LAUNCHES_PDL, Assignment.STATIC),
    "mma": (MMA, 64, PlanKind.FUSED, Assignment.STATIC),
    "mma two streams": (MMA, 48, PlanKind.TWO_STREAMS, Assignment.STATIC),
    "simt": (SIMT, 8, PlanKind.FUSED_PDL, Assignment.STATIC),
}


def candidate(tiling: Tiling, kind: PlanKind, assignment: Assignment = Assignment.STATIC) -> Candidate:
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=assignment)
    return Candidate(plan_kind=kind, schedule=Schedule(tiling=tiling, ordering=ordering))


def workload(m: int, dtype: Dtype = Dtype.FP16, *, gated: bool = True, d: int = 512, hidden: int = 1024) -> Workload:
    return ffn_pair(m=m, d_in=d, d_hidden=hidden, d_out=d, dtype=dtype, activation=Activation.SILU, gated=gated)


@contextmanager
def opened(
    builder: Builder, gpu: Gpu, folder: Path, asked: Workload, chosen: Candidate, **options: Any
) -> Iterator[tuple[Pack, Operands]]:
    from tests.support.arrays_on_card import operands

    schedule = chosen.schedule
    assert schedule is not None
    if schedule.tiling.engine is Engine.WGMMA and gpu.compute_capability != (9, 0):
        pytest.skip(f"{gpu.name} has no wgmma")
    pack = load(pack_of(folder, kernel_on_card(builder, gpu, asked, chosen, **options)))
    cupy.cuda.Device().synchronize()
    assert pack.check() == ""
    try:
        yield pack, operands(asked)
    finally:
        cupy.cuda.Device().synchronize()
        pack.close()


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("name", LADDERS)
def test_every_number_of_rows_is_right_and_rows_behind_the_last_are_untouched(
    builder: Builder, gpu: Gpu, tmp_path: Path, name: str, dtype: Dtype
) -> None:
    from tests.support.arrays_on_card import UNTOUCHED

    tiling, most, kind, assignment = LADDERS[name]
    with opened(builder, gpu, tmp_path, workload(most, dtype), candidate(tiling, kind, assignment)) as (pack, of):
        ffn = pack.bind(of.weights)
        for rows in range(1, most + 1):
            y = of.output(rows + 8)
            ffn(of.x[:rows], out=y[:rows])
            assert of.rel_error(y, rows) <= MAX_REL_ERROR[dtype], rows
            assert bool((y[rows:] == UNTOUCHED).all()), rows
        assert pack.aborts() == []


def test_ten_thousand_replays_of_32_layers_give_the_same_bits(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    asked = workload(16)
    with opened(builder, gpu, tmp_path, asked, candidate(wgmma((16, 64, 64)), PlanKind.FUSED_PDL)) as (pack, of):
        ffn = pack.bind(of.weights)
        stream, outputs = cupy.cuda.Stream(non_blocking=True), [of.output(16) for _ in range(32)]
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
            assert of.rel_error(first[0], 16) <= MAX_REL_ERROR[Dtype.FP16]
            for _ in range(10_000):
                graph.launch(stream)
        stream.synchronize()
        assert all(bool((a == b).all()) for a, b in zip(first, outputs, strict=True))
        assert pack.aborts() == []


def long_and_narrow() -> Workload:
    """Few CTAs that work for long: two launches fit a card at once."""
    return ffn_pair(m=16, d_in=16384, d_hidden=512, d_out=512, activation=Activation.SILU)


def test_two_streams_with_lanes_of_their_own_are_right(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    asked = long_and_narrow()
    chosen = candidate(wgmma((16, 128, 64)), PlanKind.FUSED, Assignment.TICKET)
    with opened(builder, gpu, tmp_path, asked, chosen) as (pack, of):
        strands = [pack.bind(of.weights, strand=strand) for strand in range(2)]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in strands]
        outputs = [of.output(16) for _ in strands]
        for _ in range(200):
            for ffn, stream, y in zip(strands, streams, outputs, strict=True):
                ffn(of.x, out=y, stream=stream.ptr)
        cupy.cuda.Device().synchronize()
        assert pack.aborts() == []
        for y in outputs:
            assert of.rel_error(y, 16) <= MAX_REL_ERROR[Dtype.FP16]


def test_two_launches_at_once_on_one_workspace_are_reported_and_reset(
    builder: Builder, gpu: Gpu, tmp_path: Path
) -> None:
    asked = long_and_narrow()
    chosen = candidate(wgmma((16, 128, 64)), PlanKind.FUSED, Assignment.TICKET)
    with opened(builder, gpu, tmp_path, asked, chosen) as (pack, of):
        ffn = pack.bind(of.weights)
        streams, y = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], of.output(16)
        for _ in range(50):
            for stream in streams:
                ffn(of.x, out=y, stream=stream.ptr)
        cupy.cuda.Device().synchronize()
        (sentence,) = pack.aborts()
        print(sentence)
        assert "at once on one workspace" in sentence or "posts seen" in sentence
        pack.reset()
        assert pack.aborts() == []
        for _ in range(20):
            ffn(of.x, out=y)
        cupy.cuda.Device().synchronize()
        assert pack.aborts() == []
        assert of.rel_error(y, 16) <= MAX_REL_ERROR[Dtype.FP16]


#: Lets the launch behind it begin at once, works for a while, then writes the weights.
WRITER = r"""
extern "C" __global__ void write(unsigned short* to, const unsigned short* from, long long count, long long cycles) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
  const long long step = gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) to[i] = from[i];
}
"""


@pytest.mark.parametrize("how", ["safe variant", "no pdl"])
def test_weights_that_a_kernel_writes_just_before_are_right(
    builder: Builder, gpu: Gpu, tmp_path: Path, how: str
) -> None:
    from tests.support.arrays_on_card import operands

    asked = workload(16)
    with opened(builder, gpu, tmp_path, asked, candidate(wgmma((16, 64, 64)), PlanKind.FUSED_PDL)) as (pack, of):
        ffn = pack.bind(of.weights, safe_weights=how == "safe variant")
        write = cupy.RawKernel(WRITER, "write", options=("--std=c++17",))
        sources = [operands(asked, seed) for seed in (1, 2, 3)]
        wanted = []
        for source in sources:
            of.weights.w1[...] = source.weights.w1
            cupy.cuda.Device().synchronize()
            wanted.append(ffn(of.x, out=of.output(16)).copy())
        for turn in range(60):
            y, w1 = of.output(16), of.weights.w1
            write((32,), (256,), (w1, sources[turn % 3].weights.w1, w1.size, 100_000))
            ffn(of.x, out=y, no_pdl=how == "no pdl")
            assert bool((y == wanted[turn % 3]).all()), turn


def test_an_abort_is_reported_within_a_second_and_right_again_after_the_reset(
    builder: Builder, gpu: Gpu, tmp_path: Path
) -> None:
    asked = workload(64)
    with opened(builder, gpu, tmp_path, asked, candidate(MMA, PlanKind.FUSED, Assignment.STATIC)) as (pack, of):
        ffn = pack.bind(of.weights)
        y = of.output(64)
        ffn(of.x, out=y)
        cupy.cuda.Device().synchronize()
        (prepared,) = pack._prepared.values()
        workspace = prepared._memory
        begin = -workspace.data.ptr % 256
        drawn = workspace[begin : begin + 8].view(cupy.uint64)
        drawn += 1_000_000  # as if more launches had run than have posted: nothing that is waited for comes
        cupy.cuda.Device().synchronize()
        begin_s = time.monotonic()
        ffn(of.x, out=y)
        while not pack.aborts() and time.monotonic() - begin_s < 5:
            time.sleep(0.01)
        elapsed_s = time.monotonic() - begin_s
        print(pack.aborts(), f"{elapsed_s:.2f} s")
        assert elapsed_s < 1.0
        assert "posts seen" in pack.aborts()[0]
        pack.reset()
        assert pack.aborts() == []
        ffn(of.x, out=y)
        cupy.cuda.Device().synchronize()
        assert of.rel_error(y, 64) <= MAX_REL_ERROR[Dtype.FP16]
