"""No literal depends on the element size: with elements of half the size, and twice as many along k, every figure in
bytes and the set of legal schedules stay the same."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import pytest

from tests.support.cases import H200
from tests.support.lanes import soak_unless
from tuner.core.legal import mma, simt, wgmma
from tuner.core.legal.legality import (
    dynamic_smem_bytes,
    estimated_registers,
    estimated_resources,
    resident_problem,
    tiling_problem,
)
from tuner.core.legal.warpgroups.workloads import LINE_BYTES
from tuner.core.model.bounds import io_bytes
from tuner.core.model.rates import rates_of
from tuner.core.model.task_costs import costs_of
from tuner.core.plan.graph.products import weight_stage_bytes
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling
from tuner.core.space.simt_tilings import STAGE_BYTES as SIMT_STAGE_BYTES
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tile_shapes import STAGE_BYTES
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.workers.simulated.library import library_us
from tuner.workers.source.render import copy_bytes
from tuner.workers.source.tensor_maps import tensor_maps


class Byte(str):
    """A one-byte element type outside of all tables: only its size may be used."""

    size_bytes = 1
    elements = Dtype.elements
    sums = Dtype.FP16
    #: Other requirements of engines: products of tensor cores, and tensor maps.
    row = Dtype.FP16.row


BYTE: Any = Byte("byte")


@pytest.fixture(autouse=True)
def weights_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the one-byte element type by its name, from which tensors take their bytes."""
    monkeypatch.setitem(ELEMENTS, "byte", BYTE)


#: The last op's k, and so the previous op's n, is doubled, too: rows of 16 bytes are whole either way.
WORKLOADS = [
    ffn_pair(m=16, d_in=1024, d_hidden=2816, d_out=1024, bias=True),
    ffn_pair(m=2, d_in=1024, d_hidden=2048, d_out=512),
    ffn_pair(m=300, d_in=512, d_hidden=1408, d_out=512, gated=True),
    independent_pair((64, 512, 1000), (128, 256, 520)),
]


def halved(workload: Workload) -> Workload:
    """One-byte elements, twice as many along k; an intermediate then has twice as many columns. Each op reads its own
    input, so nothing else changes."""
    ops = tuple(replace(op, k=2 * op.k, source=f"x{i}") for i, op in enumerate(workload.tile_ops))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=BYTE)


def apart(workload: Workload) -> Workload:
    """The same ops, each with its own input."""
    ops = tuple(replace(op, source=f"x{i}") for i, op in enumerate(workload.tile_ops))
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=workload.dtype)


def deeper(tiling: Tiling) -> Tiling:
    """The tiling whose stages have the same bytes."""
    return replace(tiling, tiles=tuple(replace(tile, k=2 * tile.k) for tile in tiling.tiles))


@lru_cache
def every_tiling(workload: Workload) -> tuple[Tiling, ...]:
    return Space(workload, H200).tilings


def some_tilings(workload: Workload) -> list[Tiling]:
    every = every_tiling(workload)
    by_engine = [[tiling for tiling in every if tiling.engine is engine] for engine in Engine]
    return [tiling for of_engine in by_engine for tiling in islice(of_engine, 0, None, max(1, len(of_engine) // 40))]


#: In CI few rows, of which simt kernels are offered, too.
CASES = soak_unless(lambda place, _: place == 1, map(apart, WORKLOADS))
EACH = pytest.mark.parametrize("workload", CASES, ids=Workload.describe)


@pytest.mark.slow
@EACH
def test_shared_memory_registers_and_legality_hang_on_bytes(workload: Workload) -> None:
    other, tilings = halved(workload), some_tilings(workload)
    assert len(tilings) > 50
    for tiling in tilings:
        twin = deeper(tiling)
        if tiling.epilogue is Epilogue.TMA:  # it stores lines of the output, whose columns are not k
            continue
        assert tiling_problem(other, H200, twin) is None
        assert dynamic_smem_bytes(other, twin) == dynamic_smem_bytes(workload, tiling)
        if tiling.engine is not Engine.SIMT:  # it converts a chunk of its rows to fp32, with twice as many elements
            assert estimated_registers(other, twin) == estimated_registers(workload, tiling)
            assert estimated_resources(other, twin) == estimated_resources(workload, tiling)


@pytest.mark.slow
@EACH
def test_what_is_refused_is_refused_at_other_sizes_too(workload: Workload) -> None:
    other = halved(workload)
    for tiling in some_tilings(workload):
        for odd in (replace(tiling, tiles=tuple(replace(tile, k=3 * tile.k // 2) for tile in tiling.tiles)), tiling):
            changed = replace(odd, epilogue=Epilogue.TMA, num_stages=6, split_k=(2,) * len(odd.tiles))
            refusals = tiling_problem(workload, H200, changed), tiling_problem(other, H200, deeper(changed))
            # TMA stores lines of the output, whose columns are not k, and only with 16-bit elements.
            if "TMA stores" not in str(refusals) and "needs 16-bit elements" not in str(refusals):
                assert (refusals[0] is None) == (refusals[1] is None), refusals


@EACH
def test_what_the_model_reads_and_what_a_copy_brings_are_bytes(workload: Workload) -> None:
    other, rates = halved(workload), rates_of(H200)
    for tiling in some_tilings(workload)[::5]:
        twin = deeper(tiling)
        costs, halves = (
            costs_of(tile_graph(of, shape), H200, rates) for of, shape in ((workload, tiling), (other, twin))
        )
        for op, cost in costs.items():
            whole, half = cost.whole, halves[op].whole
            # The bias has columns, not k.
            bias = [extent * workload.tile_ops[op].weight_rows // workload.tile_ops[op].n for extent in cost.cols]
            assert half.a_bytes == whole.a_bytes
            expected = zip(whole.w_bytes, bias, strict=True)
            assert half.w_bytes == [w - b * workload.tile_ops[op].bias for w, b in expected]
            assert (half.stage_bytes, half.ahead_bytes) == (whole.stage_bytes, whole.ahead_bytes)
            assert (half.turn_us, half.dram_stretch) == (whole.turn_us, whole.dram_stretch)
            assert (halves[op].element_bytes, cost.element_bytes) == (1, 2)
            assert 2 * halves[op].once_bytes == cost.once_bytes
            assert [[2 * b for _, b, _ in cell] for row in halves[op].out_panels for cell in row] == [
                [b for _, b, _ in cell] for row in cost.out_panels for cell in row
            ]
    for op, half in zip(workload.tile_ops, other.tile_ops, strict=True):
        assert copy_bytes(half, BYTE) == copy_bytes(op, workload.dtype)


def test_an_odd_row_is_copied_element_by_element() -> None:
    op = ffn_pair(m=16, d_in=33, d_hidden=32, d_out=32).tile_ops[0]
    assert (copy_bytes(op, Dtype.FP16), copy_bytes(op, BYTE)) == (2, 1)


@EACH
def test_tensor_maps_are_the_same_bytes(workload: Workload) -> None:
    other = halved(workload)
    for tiling in some_tilings(workload):
        if tiling.engine is not Engine.WGMMA or tiling.epilogue is Epilogue.TMA:
            continue
        for one, half in zip(tensor_maps(workload, tiling), tensor_maps(other, deeper(tiling)), strict=True):
            assert half.strides_bytes == one.strides_bytes
            assert (half.dims[0], half.box[0]) == (2 * one.dims[0], 2 * one.box[0])
            assert (half.dims[1:], half.box[1:]) == (one.dims[1:], one.box[1:])


# In CI, stages have good bytes whatever the size of an element.
@pytest.mark.soak
def test_the_copy_engine_stores_a_line_of_outputs_whatever_their_size() -> None:
    workload = apart(ffn_pair(m=512, d_in=2048, d_hidden=4096, d_out=2048))
    stored = [one for one in Space(workload, H200).tilings if one.epilogue is Epilogue.TMA]
    assert stored
    for of, tiling in ((workload, stored[0]), (replace(workload, dtype=BYTE), deeper(stored[0]))):
        for made in tensor_maps(of, tiling)[-len(of.tile_ops) :]:
            op = of.tile_ops[made.op]
            assert made.strides_bytes == (op.n * of.dtype.size_bytes,)
            assert made.box[0] * of.dtype.size_bytes == LINE_BYTES


@pytest.mark.slow
@EACH
def test_the_tilings_on_offer_have_stages_of_good_bytes(workload: Workload) -> None:
    """The tilings are not the same, because products take a different share of the time."""
    other = halved(workload)
    offered = every_tiling(other)
    assert {tiling.engine for tiling in offered} == {tiling.engine for tiling in every_tiling(workload)}
    depths = {Engine.MMA: mma.STAGE_ROW_BYTES, Engine.SIMT: simt.STAGE_ROW_BYTES}
    depths[Engine.WGMMA] = tuple(lines * LINE_BYTES for lines in wgmma.STAGE_LINES)
    for tiling in offered:
        assert tiling_problem(other, H200, tiling) is None
        assert resident_problem(other, tiling) is None
        for op, tile in zip(other.tile_ops, tiling.tiles, strict=True):
            assert tile.k * BYTE.size_bytes in depths[tiling.engine]
            if tiling.engine is Engine.WGMMA:
                assert weight_stage_bytes(op, tile, BYTE) <= max(STAGE_BYTES[1], tile.n * op.rows_per_column * 128)
            if tiling.engine is Engine.SIMT:
                assert SIMT_STAGE_BYTES[0] <= tile.n * op.rows_per_column * tile.k <= SIMT_STAGE_BYTES[1]


def test_bounds_and_the_librarys_time_scale_with_the_element() -> None:
    workload = ffn_pair(m=16, d_in=1024, d_hidden=4096, d_out=1024)
    byte = replace(workload, dtype=BYTE)
    assert 2 * byte.compulsory_bytes == workload.compulsory_bytes
    assert 2 * byte.weight_bytes == workload.weight_bytes
    assert 2 * io_bytes(byte, 2**19) == pytest.approx(io_bytes(workload, 2**20))
    assert library_us(byte, H200) < library_us(workload, H200)
