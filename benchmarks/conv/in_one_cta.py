"""Pairs of convolutions of 64 filters, each tile with its halo in one CTA.

python -m benchmarks.conv.in_one_cta [--row r50-s1-3x3-1x1/b1 ...] [--seconds 60] [--out FILE]

Writes benchmarks/results/<gpu>/conv_in_one_cta.json. The kernel is not part of the product. All tiles and numbers of
warpgroups of `WAYS` are timed as programmatic launches, in the same rounds as the library and, if conv.json has the
row, as our fastest schedule in one launch. The results of each are checked. About 4 seconds per row on 16 cores, and 15
for the builds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from benchmarks.conv.rows import Row, rows
from benchmarks.conv.search import workload_of
from benchmarks.conv.waterfall import asked_of
from benchmarks.waterfall.loops import product_text
from benchmarks.waterfall.on_card import Build, Builds, measure_rows, pair_on_card
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import TunerError
from tuner.workers.builder.nvrtc import compile_source

Json = dict[str, Any]

SOURCE = Path(__file__).with_suffix(".cu")
KERNEL, SMS = "pair_in_one_cta", 132
NUM_ROUNDS = 15
#: Rows and columns of a tile.
TILES = ((8, 8), (7, 8), (4, 14), (4, 8), (7, 7), (8, 14))
#: Widths of products that a tile may need.
WIDTHS = range(8, 257, 8)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A tile, and how many warpgroups a CTA has."""

    height: int
    width: int
    groups: int
    #: Whether the warpgroups share one tile.
    together: bool = False

    def __str__(self) -> str:
        return (
            f"{self.height}x{self.width} {'together' if self.together else 'alone' if self.groups == 1 else 'in twos'}"
        )

    def tiles(self, row: Row) -> int:
        """Number of tiles of all images."""
        return row.batch * -(-row.pair.size // self.height) * -(-row.pair.size // self.width)

    def ctas(self, row: Row) -> int:
        """Number of CTAs per launch."""
        return min(SMS, -(-self.tiles(row) // (1 if self.together else self.groups)))


WAYS = tuple(
    Way(height=height, width=width, groups=count, together=together)
    for height, width in TILES
    for count, together in ((1, False), (2, False), (2, True))
)


def source_of(row: Row, way: Way, *, swapped: bool = False) -> str:
    """CUDA C++ of a kernel; `swapped` to exchange both offsets of a descriptor."""
    first, second = row.pair.layers
    sizes = {"H": row.pair.size, "W": row.pair.size, "C": first.channels, "F1": first.filters, "F2": second.filters}
    sizes |= {
        "K1": first.kernel,
        "K2": second.kernel,
        "TH": way.height,
        "TW": way.width,
        "GROUPS": way.groups,
        "TOGETHER": int(way.together),
    }
    sizes |= {"SWAPPED_OFFSETS": 1} if swapped else {}
    defined = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    return defined + SOURCE.read_text().replace("//@products", "".join(product_text(width) for width in WIDTHS))


def built(row: Row, way: Way, *, swapped: bool = False) -> bytes | None:
    """The cubin; None if the tile needs more than the shared memory of an SM.

    Raises:
        TunerError: the kernel does not compile for another reason.
    """
    try:
        return compile_source(source_of(row, way, swapped=swapped), "sm_90a")[0]
    except TunerError as error:
        if "static assertion" in str(error):
            return None
        raise


class InOneCta:
    """A runner of a built kernel."""

    def __init__(self, row: Row, way: Way, cubin: bytes) -> None:
        from cuda.bindings import driver

        from tuner.workers.gpu.launching.launch import check, launch_config, programmatic_attribute

        self._check, self._driver, self._config_of, self._cubin = check, driver, launch_config, cubin
        self._attributes = [programmatic_attribute()]
        module = check(driver.cuModuleLoadData(cubin))
        self._function = check(driver.cuModuleGetFunction(module, KERNEL.encode()))
        address, size = check(driver.cuModuleGetGlobal(module, b"tuner_smem_bytes"))
        found = (ctypes.c_int * 1)()
        check(driver.cuMemcpyDtoH(ctypes.addressof(found), address, size))
        self._smem = found[0]
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self._function, name, self._smem))
        self._ctas, self._tiles, self._threads = way.ctas(row), way.tiles(row), 128 * way.groups

    def enqueue(self, ops: Any, stream: int) -> None:
        """Enqueues one launch."""
        first, second = ops
        values: list[Any] = [
            ctypes.c_void_p(one) for one in (first.a, first.w, first.bias, second.w, second.bias, second.c)
        ]
        values += [ctypes.c_int(self._tiles), ctypes.c_int(1)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        config = self._config_of(self._ctas, self._threads, self._smem, stream)
        config.attrs, config.numAttrs = self._attributes, 1
        self._check(self._driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))

    def abort_record(self) -> None:
        """None: the kernel has no waits."""

    def overwritten(self) -> str:
        """Empty: the kernel has no memory of its own."""
        return ""

    def poison(self) -> None:
        """Does nothing: the kernel has no memory of its own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures rows until the time limit."""
    parser = parser_of(__doc__, "row", "out", seconds=60)
    parser.add_argument("--jobs", type=Path, help="the rows of jobs; default: the card's conv.json")
    parser.add_argument("--swapped", action="store_true", help="exchange both offsets of a descriptor")
    options = parser.parse_args(arguments)
    asked = called([row for row in rows() if row.pair.first.filters == 64], options.row)
    pairs = {row.pair.name: row for row in asked}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        begun = {
            (name, way): pool.submit(built, row, way, swapped=options.swapped)
            for name, row in pairs.items()
            for way in WAYS
        }
        cubins = {key: one.result() for key, one in begun.items()}

    def measured_row(row: Row, builds: Builds) -> Json:
        jobs = options.jobs or results_file(builds.target_id, "conv")
        known = {one.name: one for one in asked_of(jobs, [])}
        return measured(row, builds, known, {way: cubins[row.pair.name, way] for way in WAYS})

    measure_rows("conv_in_one_cta", options, lambda _: asked, measured_row)


def measured(row: Row, builds: Builds, known: dict[str, WaterfallRow], cubins: dict[Way, bytes | None]) -> Json:
    """Times and errors of all ways."""
    from tuner.workers.gpu.tensors.check import WrongNumbers, check_others

    ours = known.get(row.name)
    prepared = builds.make(Build(row=ours.launched(PlanKind.FUSED_PDL))) if ours else None
    workload, errors = workload_of(row), dict[str, float]()
    of_problem = ours or WaterfallRow(name=row.name, workload=workload, schedule=next(iter(known.values())).schedule)
    with pair_on_card(of_problem, builds.gpu.arch) as pair:
        on_card, graphs, reasons = pair.on_card, {"library": pair.on_card.library_graph}, dict[str, str]()
        if prepared:
            graphs["ours"] = pair.graph(prepared)
        for way, cubin in cubins.items():
            if cubin is None:
                continue
            runner = InOneCta(row, way, cubin)

            def outputs_of(ops: Any, runner: InOneCta = runner) -> Json:
                on_card.data.poison()
                on_card.run_once(runner, ops)
                return {workload.ops[1].name: on_card.data.outputs[0][workload.ops[1].name].bits}

            try:
                errors[str(way)] = check_others(on_card.data, on_card.comparer, outputs_of)
            except WrongNumbers as error:
                reasons[str(way)] = str(error)[:200]
                continue
            graphs[str(way)] = pair.captured(runner)
        times = pair.times(graphs, NUM_ROUNDS)
    us = {name: round(times[name].us, 3) for name in sorted(times, key=lambda name: times[name].us)}
    found: Json = {"floor_us": round(row.floor_us, 3), "us": us, "launches": pair.chain_length}
    found |= {"rel_error": max(errors.values(), default=None), "wrong": reasons}
    return found | ({"schedule": str(ours.schedule)} if ours else {})


if __name__ == "__main__":
    main()
