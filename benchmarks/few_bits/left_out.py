"""Where the time of pairs with weights of few bits goes: benchmarks/results/<gpu>/few_bits_left_out.json.

python -m benchmarks.few_bits.left_out [--row int4/4096-14336/m1] [--seconds 60] [--out FILE]

A schedule of each row is timed whole and with one thing left out at a time; with converted weights and up to 16 rows,
also with wgmma instead of mma.sync. Other schedules are timed in the same rounds; with 64 or more rows, two CTAs share
inputs in some of them. Builds without a part compute wrong results. It takes about 10 seconds per row on an H200 with
16 cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.few_bits.rows import PAIRS, SCHEMES, Row
from benchmarks.few_bits.search import workload_of
from benchmarks.waterfall.on_card import Build, Builds, measure_rows, pair_on_card
from benchmarks.waterfall.patches import NO_EPILOGUE, NO_INPUTS, NO_WEIGHTS, Patch
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.reports.inspection import TaskSpan
from tuner.core.trial.stats import median

OURS = "ours"
_FRAGMENTS = "convert(fragments[span % 2][block], words[block], own_span, block, bundle);"
_ISSUE = "          WgmmaOfRegisters<kColumns>::multiply("
#: Leaves out products and conversions: for up to 16 rows, where each warp multiplies alone, and for more rows.
NO_PRODUCTS = (
    Patch(before="span < kSpans; ++span)", after="span < (left < 0 ? kSpans : 0); ++span)"),
    Patch(before=_FRAGMENTS, after=f"if (slot < 0) {_FRAGMENTS}"),
    Patch(before=_ISSUE, after=f"          if (slot < 0) {_ISSUE.lstrip()}"),
)
_CONVERTED = "Weights::convert(words[word], pairs[word], bundle.beside[group][block][word % 2]);"
NO_CONVERSION = (Patch(before=_CONVERTED, after="for (u32& pair : pairs[word]) pair = words[word] + group;"),)
NO_FACTORS = (
    Patch(before="list_bytes = kLists > 0 ?", after="list_bytes = kLists < 0 ?"),
    Patch(
        before="if constexpr (kLists > 0) {\n    const int rows",
        after="if constexpr (kLists < 0) {\n    const int rows",
    ),
)
LEFT_OUT = {
    "no inputs": NO_INPUTS,
    "no weights": NO_WEIGHTS,
    "no conversion": NO_CONVERSION,
    "no products": NO_PRODUCTS,
    "no epilogue": NO_EPILOGUE,
    "no factors": NO_FACTORS,
    "weights alone": (*NO_INPUTS, *NO_PRODUCTS, *NO_EPILOGUE),
    "loads alone": (*NO_PRODUCTS, *NO_EPILOGUE),
    "products alone": (*NO_INPUTS, *NO_WEIGHTS, *NO_EPILOGUE),
    "barriers alone": (*NO_INPUTS, *NO_WEIGHTS, *NO_PRODUCTS, *NO_EPILOGUE),
}
_BY_WGMMA = (Patch(before="kMostSync = 16;", after="kMostSync = 0;"),)
#: Changes that do not affect results.
CHANGED = {OURS: (), "by wgmma": _BY_WGMMA}
_MOST_SYNC = 16
_WIDE, _NARROW = PAIRS[:2]
#: For each row the winner of a job, then other schedules.
SCHEDULES = {
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=1): (
        "wgmma 8x64x512+8x64x512 s5 i5 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice first_wave 1/SM",
        "wgmma 8x56x512+8x64x512 s6 i6 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice static 1/SM less 4 SMs",
        "wgmma 8x56x512+8x128x256 s5 i6 w8 swap-ab split1+4 "
        "| row+row producer_first strided-parts chunk64-sync by slice static 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["int4"], pair=_NARROW, m=1): (
        "wgmma 8x32x512+8x64x512 s10 i6 w4 swap-ab | row+row producer_first row-sync static 1/SM less 4 SMs",
        "wgmma 8x56x512+8x128x256 s4 i6 w8 swap-ab split2+2 | row+row producer_first row-sync static 1/SM",
        "wgmma 8x64x512+8x128x256 s4 i5 w8 swap-ab split2+2 | row+row producer_first row-sync static 1/SM",
    ),
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=16): (
        "wgmma 16x64x512+16x128x256 s3 i6 w8 swap-ab split1+4 "
        "| row+row producer_first strided-parts chunk32-sync by slice static 1/SM less 4 SMs",
        "wgmma 16x56x512+16x64x512 s5 i5 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice static 1/SM less 4 SMs",
        "wgmma 16x112x256+16x128x256 s6 i6 w4 swap-ab split1+4 "
        "| row+row producer_first strided4-sync ticket 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=64): (
        "wgmma 64x56x256+64x128x256 s5 i4 w8 swap-ab split1+4 scattered-sums "
        "| row+row producer_first strided-parts chunk64-sync by slice static 1/SM less 4 SMs",
        "wgmma 64x64x256+64x128x256 s4 i4 w8 swap-ab split1+4 "
        "| row+row producer_first strided-parts chunk32-sync by slice static 1/SM less 4 SMs",
        "wgmma 64x64x512+64x128x512 s2 i2 w8 swap-ab split1+4 "
        "| row+row producer_first strided-parts chunk32-sync by slice static 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=128): (
        "wgmma 128x56x256+128x128x256 s3 i2 w8 swap-ab split1+4 scattered-sums "
        "| row+row producer_first strided-parts part-major chunk64-sync by slice ahead0 static 1/SM less 4 SMs",
        "wgmma 128x112x256+128x256x256 s3 i2 w8 swap-ab split1+4 cluster1x2 "
        "| row+row producer_first strided-parts chunk32-sync by slice static 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["tensor"], pair=_WIDE, m=128): (
        "wgmma 128x56x128+128x64x128 s7 i7 w8 split1+2 scattered-sums "
        "| row+row producer_first strided-parts chunk64-sync by slice ahead0 static 1/SM",
        "wgmma 128x112x128+128x128x128 s7 i7 w8 split1+2 cluster1x2 "
        "| row+row producer_first strided-parts chunk32-sync by slice static 1/SM less 4 SMs",
        "wgmma 128x112x128+128x192x128 s7 i7 w8 swap-ab split1+3 cluster1x2 "
        "| row+row producer_first strided-parts row-sync static 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["token"], pair=_NARROW, m=64): (
        "wgmma 64x32x256+64x32x512 s4 i5 w4 | row+row producer_first row-sync static 1/SM less 4 SMs",
        "wgmma 64x64x256+64x64x512 s4 i5 w4 cluster1x2 | row+row producer_first row-sync static 1/SM less 4 SMs",
        "wgmma 64x64x256+64x128x256 s5 i5 w4 cluster1x2 | row+row producer_first row-sync static 1/SM less 4 SMs",
    ),
    Row(scheme=SCHEMES["w8a16"], pair=_WIDE, m=16): (
        "wgmma 16x56x256+16x64x256 s6 i6 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice first_wave 1/SM",
        "wgmma 16x112x128+16x128x256 s3 i6 w8 swap-ab split1+4 "
        "| row+row producer_first strided-parts chunk64-sync by slice first_wave 1/SM",
    ),
}


def waterfall_row(row: Row, line: str) -> WaterfallRow:
    """A row with the schedule to launch."""
    return WaterfallRow(
        name=row.name, workload=workload_of(row), schedule=read_line(line), plan_kind=PlanKind.FUSED_PDL
    )


def patches_of(row: Row) -> dict[str, tuple[Patch, ...]]:
    """The patches of a row's builds: without groups there are no scales to leave out, and without conversion only loads
    and stores can be left out."""
    if row.scheme.weight_bits == row.scheme.operand_bits:
        return {OURS: (), "no inputs": NO_INPUTS, "no weights": NO_WEIGHTS, "no epilogue": NO_EPILOGUE}
    has_groups = row.scheme.scale_bits > 0
    changed = {name: patches for name, patches in CHANGED.items() if row.m <= _MOST_SYNC or patches is not _BY_WGMMA}
    return changed | {name: patches for name, patches in LEFT_OUT.items() if has_groups or patches is not NO_FACTORS}


def timed(row: Row, builds: Builds) -> dict[str, Any]:
    """Microseconds of each build of the first schedule, of its plain launch, and of the other schedules."""
    first, *others = (waterfall_row(row, line) for line in SCHEDULES[row])
    asked = {name: Build(row=first, patches=patches) for name, patches in patches_of(row).items()}
    asked["launched plainly"] = Build(row=replace(first, plan_kind=PlanKind.FUSED))
    asked |= {str(other.schedule): Build(row=other) for other in others}
    with pair_on_card(first, builds.gpu.arch) as pair:
        kernels = builds.make_all(asked)
        graphs = {name: pair.graph(kernel, checked=name not in LEFT_OUT) for name, kernel in kernels.items()}
        times = {name: round(one.us, 2) for name, one in pair.times(graphs).items()}
        spans, _ = pair.stamps(builds.make(Build(row=first, traced=True)))
    figures = {"schedule": SCHEDULES[row][0], "floor_us": round(row.floor_us, 3)}
    return figures | {"left_out_us": times, "stamps_us": stamped(spans)}


def stamped(spans: Sequence[TaskSpan]) -> dict[str, list[float]]:
    """Medians by op and by the task's number in its CTA: taken, ready, loaded, computed and stored, microseconds."""
    found: dict[str, list[TaskSpan]] = {}
    numbers: dict[tuple[int, int, int], int] = {}
    for span in sorted(spans, key=lambda one: one.taken_ns):
        key = span.launch, span.cta, span.op
        numbers[key] = numbers.get(key, -1) + 1
        found.setdefault(f"op {span.op}, task {numbers[key]}", []).append(span)
    names = ("taken_ns", "ready_ns", "loaded_ns", "computed_ns", "stored_ns")
    return {
        of: [round(median([float(getattr(one, name)) for one in together]) / 1e3, 2) for name in names]
        for of, together in sorted(found.items())
    }


def main() -> None:
    """Times the rows that the command line names."""
    options = parser_of(__doc__, "row", "out", seconds=60.0).parse_args()
    measure_rows("few_bits_left_out", options, lambda _: called(list(SCHEDULES), options.row), timed)


if __name__ == "__main__":
    main()
