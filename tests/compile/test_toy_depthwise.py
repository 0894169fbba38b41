"""A tile op of another package: its device code is compared with a reference on the CPU, and compiled for GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import toys

pytestmark = pytest.mark.slow

#: CI runs each value once, `make soak` all combinations.
EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])


def run(program: str, every: bool, folder: Path) -> str:
    """The output of the program, with the package installed in `folder`."""
    return toys.run(f"EVERY = {every}\n{program}", toys.install("depthwise", folder), timeout_s=290)


EMULATED = """
from itertools import product
from tests.support.depthwise import chain, tiling
from tests.support.emulated.chain import EmulatedChain, plans_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling

#: Rows of sequences that tiles do not divide, columns too, by both engines, with rows that a thread makes at once.
MMA = ((16, 32, 32), (16, 64, 32), (16, 32, 32))
SIMT = ((4, 8, 256), (4, 32, 256), (4, 8, 256))
CASES = [
    (chain(), tiling(Engine.MMA, *MMA)),
    (chain(dtype="bf16", taps=7), tiling(Engine.MMA, *MMA, rows_at_once=4)),
    (chain(m=4, length=2, taps=3, n=64), tiling(Engine.SIMT, *SIMT, rows_at_once=2)),
]
for (workload, chosen), is_fused in product(CASES, (True, False)) if EVERY else zip(CASES, (True, False, True)):
    emulated = EmulatedChain(workload)
    got = emulated.run(chosen, plans_of(workload, chosen, is_fused=is_fused))
    print(workload.dtype, emulated.worst_row(got) < {"fp16": 2e-3, "bf16": 8e-3}[workload.dtype])
sizes = {"m": 40, "activation": "identity", "bias": False}
up = sizes | {"name": "up", "n": 64, "k": 64, "source": "x"}
first, second = ({"op": "depthwise", "name": name, "m": 40, "n": 64, "length": 20} for name in ("first", "second"))
down = sizes | {"name": "down", "n": 64, "k": 64}
for ops in (
    [first | {"source": "x"}, down | {"source": "first"}],
    [up, first | {"source": "up"}, second | {"source": "first", "taps": 5}],
    [up, first | {"source": "up"}, down | {"source": "up", "residual": True, "residual_source": "first"}],
    [first | {"source": "x", "length": 8}],
):
    workload = Workload.from_json({"kind": "chain", "ops": ops, "dtype": "fp16"})
    plain = Tiling(tiles=(Tile(m=16, n=32, k=32),) * len(ops), num_stages=2, num_warps=4)
    emulated = EmulatedChain(workload)
    print("fp16", emulated.worst_row(emulated.run(plain, plans_of(workload, plain, is_fused=True))) < 2e-3)
workload, chosen = CASES[0]
FAULTS = (
    ("first - kRadius + i / kTileN", "first + i / kTileN"),
    ("0 <= row && row < kLength", "row < kLength"),
    ("task.tile_m / kTilesOfOne", "0"),
    ("Element::widen(op.w[column * kTaps + j - r])", "Element::widen(op.w[column * kTaps])"),
)
for before, after in FAULTS if EVERY else FAULTS[:1]:
    emulated = EmulatedChain(workload)
    got = emulated.run(chosen, plans_of(workload, chosen, is_fused=True), ((before, after),))
    print(before, emulated.worst_row(got) < 2e-3, sep="; ")
"""


# In CI, test_toy_operands.py has the numbers of a package's op, and a fault.
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@EVERY
def test_its_device_code_leaves_the_right_numbers_and_a_fault_in_it_shows(tmp_path: Path, every: bool) -> None:
    printed = run(EMULATED, every, tmp_path).splitlines()
    cases = [f"{dtype} True" for dtype in ("fp16", "bf16", "fp16") for _ in range(2 if every else 1)]
    assert printed[: len(cases)] == cases
    others, faulty = printed[len(cases) : len(cases) + 4], printed[len(cases) + 4 :]
    assert others == ["fp16 True"] * 4, "first, last and again, as a residual, alone"
    faults = [line.rpartition("; ") for line in faulty]
    assert [verdict for _, _, verdict in faults] == ["False"] * (4 if every else 1), printed


#: Rings of one depth, and two alternating teams with rings of two stages.
WGMMA = """
from dataclasses import replace
from tests.support.depthwise import chain, tiling
from tests.support.emulated.chain import EmulatedChain, plans_of
from tuner.core.schedule.tiling import Engine, Warpgroups

one = replace(tiling(Engine.WGMMA, (16, 32, 64), (16, 32, 64), (16, 32, 64)), input_stages=2)
turns = tiling(Engine.WGMMA, (64, 32, 64), (16, 24, 64), (64, 32, 64), rows_at_once=2)
turns = replace(turns, num_stages=3, input_stages=2, num_warps=8, warpgroups=Warpgroups.PING_PONG)
for workload, chosen in ((chain(taps=7), one), (chain(m=160, length=40), turns)):
    for is_fused in (True, False) if EVERY else (chosen is turns,):
        emulated = EmulatedChain(workload)
        print(emulated.worst_row(emulated.run(chosen, plans_of(workload, chosen, is_fused=is_fused))) < 2e-3)
emulated = EmulatedChain(chain(taps=7))
ran = emulated.run(one, plans_of(emulated.workload, one, is_fused=True), ((
    "run_own_tile<kOp>(args.base, slot, shared, places);",
    "shared.flags->aborted = 1; run_own_tile<kOp>(args.base, slot, shared, places);",
),))
print(bool((ran["conv"] != ran["conv"]).all()))
"""


# In CI, test_toy_operands.py has the numbers of a package's op, and a fault.
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@EVERY
def test_warpgroups_run_its_tasks_between_products_and_leave_nan_where_a_wait_has_expired(
    tmp_path: Path, every: bool
) -> None:
    printed = run(WGMMA, every, tmp_path).splitlines()
    assert printed == ["True"] * (5 if every else 3), "separate and fused; and the last one aborted"


COMPILED = """
from dataclasses import replace
from tests.support.depthwise import chain, tiling
from tests.support.reports import report_of
from tuner.core.schedule.tiling import Engine, Warpgroups
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

builds = ("sm_80", 4, False, Variant.GUARDED), ("sm_90a", 2, True, Variant.MEASURED)
for arch, rows_at_once, traced, variant in builds:
    chosen = tiling(Engine.MMA, (64, 64, 64), (64, 64, 64), (64, 64, 64), rows_at_once=rows_at_once)
    dots = tiling(Engine.SIMT, (4, 8, 256), (4, 32, 256), (4, 8, 256), rows_at_once=rows_at_once)
    both = (chain(m=256, length=128, n=512), chosen), (chain(m=4, length=2, n=512), dots)
    for workload, one in both if EVERY else both[traced:][:1]:
        assert report_of(render(workload, one, traced=traced, variant=variant), arch).resources.spill_bytes == 0
wgmma = replace(tiling(Engine.WGMMA, (64, 64, 64), (64, 64, 64), (64, 64, 64)), input_stages=2)
for num_warps, variant in ((4, Variant.MEASURED), (8, Variant.GUARDED)):
    one = replace(wgmma, num_warps=num_warps)
    one = one if num_warps == 4 else replace(one, warpgroups=Warpgroups.PING_PONG)
    source = render(chain(m=256, length=128, n=512), one, variant=variant)
    assert report_of(source, "sm_90a").resources.spill_bytes == 0
print("compiled")
"""


@EVERY
def test_it_compiles_for_every_engine_that_runs_it_without_spills(tmp_path: Path, every: bool) -> None:
    assert run(COMPILED, every, tmp_path).strip() == "compiled"


REFUSED = """
from dataclasses import replace
from tests.support.cases import H200
from tests.support.depthwise import chain, tiling
from tuner.core.legal.legality import tiling_problem
from tuner.core.schedule.tiling import Engine

chosen = tiling(Engine.MMA, (16, 32, 64), (16, 32, 64), (16, 32, 64))
print(tiling_problem(chain(), H200, chosen))
print(tiling_problem(chain(), H200, replace(chosen, engine=Engine.WGMMA, input_stages=2)))
print(tiling_problem(chain(), H200, replace(chosen, engine=Engine.WGMMA, input_stages=2, cluster_n=2)))
print(tiling_problem(chain(), H200, replace(chosen, split_k=(1, 2, 1))))
"""


# In CI, tests/service/test_toys.py names wrong fields of its op.
@pytest.mark.soak
def test_what_no_kernel_does_of_it_is_said_by_name(tmp_path: Path) -> None:
    site = toys.install("depthwise", tmp_path)
    plain, wgmma, cluster, split = toys.run(REFUSED, site).splitlines()
    assert plain == wgmma == "None"
    assert cluster == "clusters, but a task of conv, a depthwise, has one CTA: use 1 x 1 CTAs"
    rules = site / "toy_depthwise" / "rules.py"
    rules.write_text(rules.read_text().replace(', "wgmma"', ""))
    refused = toys.run(REFUSED, site).splitlines()[1]
    assert refused == "the wgmma engine cannot run tasks of conv, a depthwise: use mma or simt"
    assert split == "2 parts of conv: a tile has 1 k-steps of 64; use no more parts than that"
