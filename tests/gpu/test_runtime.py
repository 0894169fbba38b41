"""Packs on a GPU, run by the runtime: results for every row count, graphs, streams, safe weights, aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import wgmma
from tests.support.packs_on_card import kernel_on_card
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.packs.invariant import make_invariant_entry
from tuner.packs.ladder import Found
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack
from tuner.runtime import load
from tuner.workers.builder.nvrtc import Builder

cupy = pytest.importorskip("cupy")

from tests.support import runtime_on_card as on_card  # noqa: E402
from tests.support.arrays_on_card import operands  # noqa: E402

MMA = Tiling(tiles=(Tile(m=16, n=64, k=64), Tile(m=16, n=64, k=64)), num_stages=3, num_warps=4)
SIMT = Tiling(engine=Engine.SIMT, tiles=(Tile(m=4, n=8, k=256),) * 2, num_stages=3, num_warps=4)
#: A tiling, the rows for which it is made, and its kind of launch; all smaller row counts are also tried.
LADDERS = {
    "wgmma": (wgmma((64, 64, 64)), 256, PlanKind.FUSED_PDL, Assignment.STATIC),
    "wgmma neighbours": (wgmma((64, 64, 64), neighbours=2), 200, PlanKind.FUSED_PDL, Assignment.STATIC),
    "wgmma tickets": (wgmma((16, 64, 64)), 64, PlanKind.FUSED, Assignment.TICKET),
    "wgmma swapped": (wgmma((16, 64, 64), swap_ab=True), 64, PlanKind.TWO_LAUNCHES_PDL, Assignment.STATIC),
    "mma": (MMA, 64, PlanKind.FUSED, Assignment.STATIC),
    "mma two streams": (MMA, 48, PlanKind.TWO_STREAMS, Assignment.STATIC),
    "simt": (SIMT, 8, PlanKind.FUSED_PDL, Assignment.STATIC),
}
#: Kernels with the same order of sums, for different numbers of rows: a row's bits must not show which one ran.
ORDERS = {
    "wgmma": {
        16: wgmma((16, 64, 64)),
        40: wgmma((64, 128, 64), num_stages=3),
        130: wgmma((64, 64, 128), num_stages=3),
    },
    "wgmma swapped": {8: wgmma((8, 64, 64), swap_ab=True), 64: wgmma((32, 128, 64), swap_ab=True, num_warps=8)},
    "wgmma in parts": {16: wgmma((16, 64, 64), split_k=(1, 2)), 64: wgmma((64, 64, 64), split_k=(1, 2))},
    "wgmma shared k": {64: wgmma((64, 64, 64), cluster_k=2), 128: wgmma((64, 32, 64), cluster_k=2)},
    "mma": {16: MMA, 64: Tiling(tiles=(Tile(m=32, n=64, k=64),) * 2, num_stages=3, num_warps=4)},
}


def check_runs(tiling: Tiling, gpu: Gpu) -> None:
    if tiling.engine is Engine.WGMMA and gpu.compute_capability != (9, 0):
        pytest.skip(f"{gpu.name} has no wgmma")


@pytest.mark.parametrize("dtype", UNSCALED)
@pytest.mark.parametrize("name", LADDERS)
def test_every_number_of_rows_is_right_and_rows_behind_the_last_are_untouched(
    builder: Builder, gpu: Gpu, tmp_path: Path, name: str, dtype: Dtype
) -> None:
    tiling, most, kind, assignment = LADDERS[name]
    check_runs(tiling, gpu)
    asked, chosen = on_card.workload(most, dtype), on_card.candidate(tiling, kind, assignment)
    with on_card.opened(builder, gpu, tmp_path, asked, chosen) as (pack, of):
        found = on_card.every_row_count(pack, of, most)
    assert found.worst <= 1, found.worst_rows
    assert found.touched == 0


@pytest.mark.parametrize("name", ORDERS)
def test_no_row_of_a_batch_invariant_ladder_depends_on_how_many_there_are_nor_on_its_place(
    builder: Builder, gpu: Gpu, tmp_path: Path, name: str
) -> None:
    results = []
    for m, tiling in ORDERS[name].items():
        check_runs(tiling, gpu)
        kernel = kernel_on_card(builder, gpu, on_card.workload(m), on_card.candidate(tiling, PlanKind.FUSED))
        results.append(Found(m=m, kernel=kernel, speedup=1.1, interval=None))
    most = max(ORDERS[name])
    entry = make_invariant_entry(Shape.of_workload(on_card.workload(most).to_json()), results)
    assert len({rung.kernel.digest for rung in entry.rungs if rung.kernel}) == len(results), "each kernel runs"
    write_pack([entry], tmp_path / "invariant.tunerpack")
    pack = load(tmp_path / "invariant.tunerpack")
    try:
        assert on_card.rows_that_depend_on_others(pack, operands(on_card.workload(most)), most) == 0
    finally:
        pack.close()


def test_ten_thousand_replays_of_32_layers_give_the_same_bits(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    check_runs(wgmma((16, 64, 64)), gpu)
    chosen = on_card.candidate(wgmma((16, 64, 64)), PlanKind.FUSED_PDL)
    with on_card.opened(builder, gpu, tmp_path, on_card.workload(16), chosen) as (pack, of):
        assert on_card.differing_layers(pack, of, layers=32, replays=10_000) == 0


NARROW = wgmma((16, 128, 64))


def test_two_streams_with_strands_of_their_own_are_right(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    check_runs(NARROW, gpu)
    chosen = on_card.candidate(NARROW, PlanKind.FUSED, Assignment.TICKET)
    with on_card.opened(builder, gpu, tmp_path, on_card.long_and_narrow(), chosen) as (pack, of):
        assert max(on_card.errors_of_two_strands(pack, of)) <= 1


def test_two_launches_at_once_on_one_workspace_are_reported_and_reset(
    builder: Builder, gpu: Gpu, tmp_path: Path
) -> None:
    check_runs(NARROW, gpu)
    chosen = on_card.candidate(NARROW, PlanKind.FUSED, Assignment.TICKET)
    with on_card.opened(builder, gpu, tmp_path, on_card.long_and_narrow(), chosen) as (pack, of):
        (sentence,), error = on_card.shared_workspace(pack, of)
        print(sentence)
    assert "at the same time on one workspace" in sentence or "posts seen" in sentence
    assert error <= 1


@pytest.mark.parametrize("how", ["safe variant", "no pdl"])
def test_weights_that_a_kernel_writes_just_before_are_right(
    builder: Builder, gpu: Gpu, tmp_path: Path, how: str
) -> None:
    check_runs(wgmma((16, 64, 64)), gpu)
    chosen = on_card.candidate(wgmma((16, 64, 64)), PlanKind.FUSED_PDL)
    with on_card.opened(builder, gpu, tmp_path, on_card.workload(16), chosen) as (pack, of):
        is_safe = how == "safe variant"
        assert on_card.wrong_after_a_writer(pack, of, safe_weights=is_safe, no_pdl=not is_safe) == 0


def test_an_abort_is_reported_within_a_second_and_right_again_after_the_reset(
    builder: Builder, gpu: Gpu, tmp_path: Path
) -> None:
    chosen = on_card.candidate(MMA, PlanKind.FUSED)
    with on_card.opened(builder, gpu, tmp_path, on_card.workload(64), chosen) as (pack, of):
        found = on_card.injected_abort(pack, of)
    print(found)
    assert found.reported_s < 1.0
    assert "posts seen" in found.sentences[0]
    assert found.error_after <= 1
