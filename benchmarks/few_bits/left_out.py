"""Where the time of pairs with converted weights goes: benchmarks/results/<gpu>/few_bits_left_out.json.

python -m benchmarks.few_bits.left_out [--row int4/4096-14336/m1] [--seconds 60] [--out FILE]

A schedule of each row is timed whole, and with one thing left out at a time, all in the same rounds. Builds without a
part compute wrong numbers. About 8 seconds a row on an H200 with 16 cores.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, message_of, open_workbench
from benchmarks.few_bits.rows import PAIRS, SCHEMES, Row
from benchmarks.few_bits.search import workload_of
from benchmarks.waterfall.on_card import Build, Builds, pair_on_card
from benchmarks.waterfall.patches import NO_EPILOGUE, NO_INPUTS, NO_WEIGHTS, Patch
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import TunerError

OURS = "ours"
#: Up to 16 rows, where each warp multiplies for itself.
NO_PRODUCTS = (Patch(before="span < kSpans; ++span)", after="span < (left < 0 ? kSpans : 0); ++span)"),)
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
    OURS: (),
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
_WIDE, _NARROW = PAIRS[:2]
#: Winners of jobs, by row.
SCHEDULES = {
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=1): (
        "wgmma 8x56x512+8x64x512 s6 i6 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice static 1/SM less 4 SMs"
    ),
    Row(scheme=SCHEMES["int4"], pair=_NARROW, m=1): (
        "wgmma 8x32x512+8x64x512 s10 i6 w4 swap-ab | row+row producer_first row-sync static 1/SM less 4 SMs"
    ),
    Row(scheme=SCHEMES["int4"], pair=_WIDE, m=16): (
        "wgmma 16x112x256+16x128x256 s6 i6 w4 swap-ab split1+4 "
        "| row+row producer_first strided4-sync ticket 1/SM less 4 SMs"
    ),
    Row(scheme=SCHEMES["w8a16"], pair=_WIDE, m=16): (
        "wgmma 16x56x256+16x64x256 s6 i6 w4 swap-ab split1+2 "
        "| row+row producer_first strided-parts chunk64-sync by slice first_wave 1/SM"
    ),
}


def waterfall_row(row: Row, line: str) -> WaterfallRow:
    """A row with its schedule, as it is launched."""
    return WaterfallRow(
        name=row.name, workload=workload_of(row), schedule=read_line(line), plan_kind=PlanKind.FUSED_PDL
    )


def timed(row: WaterfallRow, builds: Builds) -> dict[str, float]:
    """Microseconds of each build that fits the row, and of the row's library."""
    parts = {name: patches for name, patches in LEFT_OUT.items() if patches is not NO_FACTORS or "int4" in row.name}
    with pair_on_card(row, builds.gpu.arch) as pair:
        kernels = builds.make_all({name: Build(row=row, patches=patches) for name, patches in parts.items()})
        graphs = {name: pair.graph(kernel, checked=name == OURS) for name, kernel in kernels.items()}
        apart = builds.make(Build(row=replace(row, plan_kind=PlanKind.FUSED)))
        graphs["launched plainly"] = pair.graph(apart)
        return {name: round(one.us, 2) for name, one in pair.times(graphs).items()}


def main() -> None:
    """Times the rows that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no row is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch, rows = Watch(), list[dict[str, Any]]()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine, target_id = machine_of(bench.evaluator.environment()), bench.evaluator.target.id
        builds = Builds(bench.gpu)
    try:
        for row, line in SCHEDULES.items():
            if (options.row and row.name not in options.row) or watch.seconds > options.seconds:
                continue
            found: dict[str, Any] = {
                "row": row.name,
                "schedule": line,
                "floor_us": row.scheme.floor_us(row.pair, row.m),
            }
            try:
                found["left_out_us"] = timed(waterfall_row(row, line), builds)
            except TunerError as error:
                found["reason"] = message_of(error)
            gc.collect()
            rows.append(found)
            write_report(options.out or results_file(target_id, "few_bits_left_out"), rows, machine)
            print(watch.seconds, found, flush=True)
    finally:
        builds.close()


if __name__ == "__main__":
    main()
