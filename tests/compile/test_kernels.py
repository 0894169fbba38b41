"""The kernels compile without a GPU for every architecture, without spills or warnings."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.support.covering import covering_sample, pairs_of
from tests.support.lanes import soak_unless
from tests.support.reports import report_of
from tests.support.tiling_builds import pair
from tests.support.tiling_samples import GATED, GPU_OF_ARCH, axes, offered, pairs_of_values, single_values
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import DEVICE_FILES, KERNEL_NAME, device_text, render, without_comments
from tuner.workers.source.rows import with_rows

#: tests/soak/tilings.py compiles every pair of values of any two axes.
LANES = [True, pytest.param(False, marks=pytest.mark.soak)]
#: The oldest architecture, whose code the others run, and the one with an engine of its own.
IN_CI = soak_unless(lambda _, arch: arch in ("sm_80", "sm_90a"), GPU_OF_ARCH)


@pytest.mark.slow
@pytest.mark.parametrize("in_ci", LANES)
@pytest.mark.parametrize("arch", IN_CI)
def test_every_value_of_every_axis_compiles_without_spills_or_warnings(arch: str, in_ci: bool) -> None:
    """CI compiles a fifth of the values for the oldest architecture, and some for the others, which run the same
    code."""
    assert CATALOGUE[GPU_OF_ARCH[arch]].arch == arch
    step = (5 if arch == "sm_80" else 15) if in_ci else 1
    for tiling in single_values(arch, pair())[::step]:
        compile_cleanly(pair(), tiling, arch)


@pytest.mark.slow
@pytest.mark.parametrize("in_ci", LANES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_value_of_a_gated_tiling_compiles_without_spills_or_warnings(arch: str, in_ci: bool) -> None:
    for tiling in single_values(arch, GATED)[:: (6 if arch == "sm_80" else 15) if in_ci else 1]:
        compile_cleanly(GATED, tiling, arch)


def compile_cleanly(workload: Workload, tiling: Tiling, arch: str) -> None:
    resources = report_of(render(workload, tiling), arch).resources
    assert resources.spill_bytes == 0, tiling
    assert resources.warnings == (), tiling
    assert 0 < resources.registers_per_thread <= 255


def few_rows(workload: Workload) -> Workload:
    """With so few rows, there are fewer tiles than SMs, and splitting them is worthwhile."""
    return replace(workload, ops=tuple(replace(op, m=64) for op in workload.tile_ops))


def split_axes(tiling: Tiling) -> tuple[int, ...]:
    return (*axes(tiling)[1:4], tiling.num_warps, *(tiling.num_parts(op) for op in range(2)))


@pytest.mark.parametrize(
    ("options", "arch"),
    soak_unless(lambda _, case: case == (True, "sm_90a"), product((False, True), ("sm_80", "sm_90a"))),
    ids=str,
)
def test_split_tilings_compile_without_spills_or_warnings(options: bool, arch: str) -> None:
    workload = few_rows(GATED if options else pair())
    split = [tiling for tiling in offered(arch, workload) if tiling.split_k]
    rng = random.Random(0)
    largest = sorted(split, key=lambda tiling: -max(tile.m * tile.n for tile in tiling.tiles) // tiling.num_threads)
    for tiling in (largest[0], *rng.sample(covering_sample(split, split_axes), 1)):
        compile_cleanly(workload, tiling, arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", IN_CI)
def test_the_samples_cover_all_pairs_of_values_of_the_space_and_all_values(arch: str) -> None:
    chosen, smaller, all_of_it = pairs_of_values(arch, pair()), single_values(arch, pair()), offered(arch, pair())
    assert len(chosen) >= 24
    assert 6 <= len(smaller) < len(chosen) / 4
    assert set().union(*(pairs_of(axes(t)) for t in chosen)) == set().union(*(pairs_of(axes(t)) for t in all_of_it))
    assert {*enumerate_all(smaller)} == {*enumerate_all(all_of_it)}


def enumerate_all(tilings: list[Tiling]) -> Iterator[tuple[int, int]]:
    return (value for tiling in tilings for value in enumerate(axes(tiling)))


#: The element types that the tensor cores of `mma` multiply.
MULTIPLIED = [dtype for dtype in Dtype if dtype.row.tensor_kind is not None]
SMALL = Tiling(tiles=(Tile(m=32, n=64, k=32), Tile(m=16, n=32, k=64)), num_stages=3, num_warps=4)


@pytest.mark.parametrize(
    ("activation", "dtype", "k"),
    soak_unless(
        lambda place, _: place % 4 == 0,
        covering_sample([*product(Activation, MULTIPLIED, (8, 4, 2, 1))], lambda point: point),
    ),
)
def test_every_epilogue_and_alignment_compiles(activation: Activation, dtype: Dtype, k: int) -> None:
    workload = ffn_pair(
        m=7, d_in=32 + k, d_hidden=64 + k, d_out=5, dtype=dtype, activation=activation, bias=dtype is Dtype.BF16
    )
    options = dict.fromkeys(("gated", "residual", "row_scale"), True)
    gated = ffn_pair(m=7, d_in=32 + k, d_hidden=64 + k, d_out=5, dtype=dtype, activation=activation, **options)
    for asked in (workload, gated):
        assert report_of(render(asked, SMALL), "sm_80").resources.spill_bytes == 0


#: Each engine with each of its files.
FILES = [(engine, name) for engine in Engine for name in DEVICE_FILES[engine] if name != "chain_wgmma.cuh"]


@pytest.mark.parametrize(
    ("engine", "name"), soak_unless(lambda place, one: one[1] not in {name for _, name in FILES[:place]}, FILES)
)
def test_each_device_file_compiles_alone(engine: Engine, name: str) -> None:
    """Each is compiled with the default configuration, an element type and the files that it includes; a whole wgmma
    kernel needs generated text."""
    needed: list[str] = []

    def include(file: str) -> None:
        for line in device_text(file).splitlines():
            if line.startswith('#include "'):
                include(line.split('"')[1])
        if file not in needed:
            needed.append(file)

    include(name)
    text = "\n".join(
        line
        for file in needed
        for line in with_rows(device_text(file), Dtype.FP16.row).splitlines()
        if not line.startswith(("#include", "#pragma once"))
    )
    assert report_of(text, "sm_90a" if engine is Engine.WGMMA else "sm_80").code


def test_the_source_is_self_contained_and_names_what_it_is(pair_workload: Workload) -> None:
    source = render(pair_workload, SMALL)
    assert "#include" not in source
    assert f"{KERNEL_NAME}(" in source
    assert pair_workload.describe(with_rows=False) in source
    assert f"M={pair_workload.tile_ops[0].m}" not in source, "a different number of rows would be built again"
    assert "{32, 64, 32, 1, 4, 16, kSilu, true, false, false, false, 1, kNoHint, kNoHint},  // up" in source
    assert "{16, 32, 64, 1, 4, 16, kIdentity, true, false, false, false, 1, kNoHint, kNoHint},  // down" in source


def test_comments_are_no_part_of_the_kernels_version() -> None:
    said = "// Why.\n\n#pragma once\nconstexpr int kA = 1;  // one\n  // two\nint b;\n"
    assert without_comments(said) == "#pragma once\nconstexpr int kA = 1;\nint b;"
    for name in dict.fromkeys(name for names in DEVICE_FILES.values() for name in names):
        text = device_text(name)
        assert "/*" not in text
        assert not re.search(r'"[^"\n]*//', text), "the rest of that line would be lost"
        assert 0 < len(without_comments(text)) < len(text)


def test_every_option_of_an_op_changes_the_source(pair_workload: Workload) -> None:
    up, down = pair_workload.tile_ops
    variants = [
        replace(pair_workload, ops=ops)
        for option in ("gated", "residual", "row_scale")
        for ops in ((replace(up, **{option: True}), down), (up, replace(down, **{option: True})))
    ]
    sources = {render(workload, SMALL) for workload in (pair_workload, *variants)}
    assert len(sources) == 1 + len(variants)


def test_every_tiling_axis_changes_the_source(pair_workload: Workload) -> None:
    variants = [
        SMALL,
        replace(SMALL, num_stages=4),
        replace(SMALL, num_warps=8, tiles=(Tile(m=32, n=64, k=32), Tile(m=16, n=64, k=64))),
        replace(SMALL, tiles=(Tile(m=64, n=64, k=32), SMALL.tiles[1])),
        replace(SMALL, tiles=(Tile(m=32, n=32, k=32), SMALL.tiles[1])),
        replace(SMALL, tiles=(Tile(m=32, n=64, k=64), SMALL.tiles[1])),
        replace(SMALL, split_k=(1, 2)),
        replace(SMALL, weight_hint=CacheHint.EVICT_FIRST),
        replace(SMALL, intermediate_hint=CacheHint.EVICT_LAST),
    ]
    assert len({render(pair_workload, tiling) for tiling in variants}) == len(variants)


@pytest.fixture
def pair_workload() -> Workload:
    return ffn_pair(m=48, d_in=64, d_hidden=128, d_out=96, activation=Activation.SILU, bias=True)


WIDEST = Tiling(tiles=(Tile(m=128, n=256, k=64), Tile(m=128, n=128, k=64)), num_stages=3, num_warps=8)


@pytest.mark.parametrize(
    ("tiling", "arch"),
    soak_unless(lambda place, _: place == 0, product((SMALL, WIDEST), ("sm_80", "sm_90a"))),
    ids=str,
)
def test_a_traced_build_compiles_and_an_untraced_one_is_the_code_without_stamps(tiling: Tiling, arch: str) -> None:
    source = render(pair(), tiling)
    without, num_stamps = re.subn(r"^ *if \(.*\) trace_\w+\(args.*\);\n", "", source, flags=re.MULTILINE)
    assert num_stamps >= 8
    traced, untraced = report_of(render(pair(), tiling, traced=True), arch), report_of(source, arch)
    assert untraced.code == report_of(without, arch).code
    assert traced.code != untraced.code
    assert (traced.resources.spill_bytes, traced.resources.warnings) == (0, ())


@pytest.mark.parametrize("engine", [Engine.MMA, Engine.SIMT], ids=str)
def test_code_that_ops_share_takes_its_arguments_from_the_tasks_own_op(engine: Engine) -> None:
    """Ops with equal configurations share one instance, named after the first of them; other ops have different
    arguments."""
    # This dispatches on the op itself, since a kind's own task shares no instance.
    exact = [
        "dependent_launch.cuh",
        "own_task_cta.cuh",
    ]
    users = [name for name in DEVICE_FILES[engine] if "ops[kOp]" in device_text(name).replace("kOps[kOp]", "")]
    assert sorted(users) == exact
