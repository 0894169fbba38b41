"""The runtime's guarantees on a card: numbers of every row count, replays, streams, weights, aborts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import check_row, failed_row
from benchmarks.runtime.chosen import Chosen
from tests.support.cases import wgmma
from tests.support.packs_on_card import kernel_on_card
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.contents import Kernel
from tuner.packs.invariant import make_invariant_entry
from tuner.packs.ladder import Found
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack
from tuner.runtime import load
from tuner.workers.builder.nvrtc import Builder

MOST_ROWS, NUM_LAYERS, NUM_REPLAYS, ABORT_BAR_S = 256, 32, 10_000, 1.0
FEW, WIDE, NARROW = wgmma((16, 64, 64)), wgmma((64, 64, 64)), wgmma((16, 128, 64))

Row = dict[str, Any]
Take = Callable[[], list[Row]]


def checks(builder: Builder, gpu: Gpu, folder: Path, invariant: list[Chosen]) -> Iterator[tuple[str, Take]]:
    """Each check with its name. `invariant`: winners of one pair, whose kernels with the same order form a ladder."""
    here = partial(_opened, builder, gpu, folder)
    for dtype in UNSCALED:
        yield f"every m, {dtype}", partial(_numbers, here, dtype)
    yield "replays", partial(_replays, here)
    yield "two streams", partial(_streams, here)
    yield "weights written just before", partial(_weights, here)
    yield "an injected abort", partial(_abort, here)
    yield "batch-invariant", partial(_invariant, builder, gpu, folder, invariant)


def _opened(builder: Builder, gpu: Gpu, folder: Path, *asked: Any) -> Any:
    from tests.support import runtime_on_card as on_card

    return on_card.opened(builder, gpu, folder, *asked)


def _numbers(here: Callable[..., Any], dtype: Dtype) -> list[Row]:
    from tests.support import runtime_on_card as on_card

    asked, chosen = on_card.workload(MOST_ROWS, dtype), on_card.candidate(WIDE, PlanKind.FUSED_PDL)
    with here(asked, chosen) as (pack, of):
        found = on_card.every_row_count(pack, of, MOST_ROWS)
    name = f"{dtype}, every m in 1..{MOST_ROWS}"
    return [
        check_row(f"{name}: error over the tolerance", found.worst, 1.0, at_m=found.worst_rows),
        check_row(f"{name}: elements after the last row that were written", found.touched, 0),
    ]


def _replays(here: Callable[..., Any]) -> list[Row]:
    from tests.support import runtime_on_card as on_card

    with here(on_card.workload(16), on_card.candidate(FEW, PlanKind.FUSED_PDL)) as (pack, of):
        differing = on_card.differing_layers(pack, of, layers=NUM_LAYERS, replays=NUM_REPLAYS)
    return [check_row(f"{NUM_LAYERS} layers in a graph, {NUM_REPLAYS} replays: layers of other bits", differing, 0)]


def _streams(here: Callable[..., Any]) -> list[Row]:
    from tests.support import runtime_on_card as on_card

    chosen = on_card.candidate(NARROW, PlanKind.FUSED, Assignment.TICKET)
    with here(on_card.long_and_narrow(), chosen) as (pack, of):
        errors = on_card.errors_of_two_strands(pack, of)
    with here(on_card.long_and_narrow(), chosen) as (pack, of):
        sentences, error_after = on_card.shared_workspace(pack, of)
    unreported = "two streams on one workspace: not reported"
    return [
        check_row("two streams with workspaces of their own: error over the tolerance", max(errors), 1.0),
        check_row(unreported, 0, 0, sentence=sentences[0]) if sentences else failed_row(unreported, "nothing was said"),
        check_row("two streams on one workspace: error over the tolerance after the reset", error_after, 1.0),
    ]


def _weights(here: Callable[..., Any]) -> list[Row]:
    from tests.support import runtime_on_card as on_card

    rows = []
    for how, options in (("the safe build", (True, False)), ("no programmatic launch", (False, True))):
        with here(on_card.workload(16), on_card.candidate(FEW, PlanKind.FUSED_PDL)) as (pack, of):
            wrong = on_card.wrong_after_a_writer(pack, of, safe_weights=options[0], no_pdl=options[1])
        rows.append(check_row(f"weights that a kernel writes just before, {how}: wrong results", wrong, 0))
    return rows


def _abort(here: Callable[..., Any]) -> list[Row]:
    from tests.support import runtime_on_card as on_card

    with here(on_card.workload(64), on_card.candidate(WIDE, PlanKind.FUSED)) as (pack, of):
        found = on_card.injected_abort(pack, of)
    reported = "an injected abort: reported after, s"
    return [
        check_row(reported, found.reported_s, ABORT_BAR_S, sentence=found.sentences[0])
        if found.sentences
        else failed_row(reported, "nothing was reported"),
        check_row("an injected abort: error over the tolerance after the reset", found.error_after, 1.0),
    ]


def _invariant(builder: Builder, gpu: Gpu, folder: Path, chosen: list[Chosen]) -> list[Row]:
    from tests.support import runtime_on_card as on_card
    from tests.support.arrays_on_card import operands

    results = []
    for one in chosen:
        kernel: Kernel = kernel_on_card(builder, gpu, one.workload, one.candidate)
        results.append(Found(m=one.workload.tile_ops[0].m, kernel=kernel, speedup=None, interval=None))
    entry = make_invariant_entry(Shape.of_workload(chosen[-1].workload.to_json()), results)
    write_pack([entry], folder / "invariant.tunerpack")
    pack = load(folder / "invariant.tunerpack")
    try:
        most = entry.invariant_rows
        wrong = on_card.rows_that_depend_on_others(pack, operands(chosen[-1].workload), most)
    finally:
        pack.close()
    kernels = {rung.kernel.digest for rung in entry.rungs if rung.kernel}
    name = f"batch-invariant, {entry.shape}, every m in 1..{most}: rows of other bits than alone"
    return [check_row(name, wrong, 0, kernels=len(kernels))]
