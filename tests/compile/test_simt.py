"""The CUDA-core engine without a GPU: it compiles without warnings everywhere, within the promised resources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, simt
from tests.support.lanes import soak_unless
from tests.support.reports import report_of
from tuner.core.legal.legality import estimated_registers
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.simt_tilings import SimtTilings
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import render

AMPERE = CATALOGUE["a100"]
ALL = {"bias": True, "gated": True, "residual": True, "row_scale": True}
PLAIN = ffn_pair(m=1, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU)
GATED = ffn_pair(m=4, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.GELU, dtype=Dtype.BF16, **ALL)
CASES = [
    (PLAIN, simt((1, 32, 256), (1, 16, 1024))),
    (PLAIN, simt((1, 128, 256), (1, 32, 512), num_stages=3, split_k=(1, 4))),
    (PLAIN, simt((2, 64, 256), num_warps=4, num_stages=4, split_k=(2, 2))),
    (GATED, simt((4, 32, 256), (4, 64, 256), num_stages=2)),
    (GATED, simt((4, 8, 512), (4, 16, 512), num_warps=4, num_stages=5, split_k=(2, 1))),
    (GATED, simt((4, 16, 256), (4, 32, 256), num_stages=3, split_k=(1, 2), resident_ctas=2)),
]


@pytest.mark.parametrize(
    ("workload", "chosen", "arch"),
    soak_unless(
        lambda place, case: place % 2 == 0 and case[2] == ("sm_90a", "sm_80", "sm_120")[place // 3 % 3],
        [(*case, arch) for case in CASES for arch in ("sm_80", "sm_90a", "sm_120")],
    ),
    ids=str,
)
def test_it_compiles_without_spills_or_warnings(workload: Workload, chosen: Tiling, arch: str) -> None:
    resources = report_of(render(workload, chosen), arch).resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
    if chosen.resident_ctas == 2:
        assert resources.registers_per_thread <= 128


@pytest.mark.parametrize("step", [90, pytest.param(36, marks=pytest.mark.soak)])
@pytest.mark.parametrize("gpu", [H200, AMPERE], ids=lambda gpu: gpu.id)
@pytest.mark.parametrize("workload", [PLAIN, GATED], ids=lambda workload: workload.describe())
def test_what_is_offered_compiles_and_takes_about_what_is_estimated(workload: Workload, gpu: Gpu, step: int) -> None:
    for chosen in list(SimtTilings(workload, gpu).tilings())[::step]:
        resources = report_of(render(workload, chosen), gpu.arch).resources
        assert (resources.spill_bytes, resources.warnings) == (0, ())
        assert resources.registers_per_thread <= estimated_registers(workload, chosen) + 32


def test_a_traced_build_compiles() -> None:
    workload, chosen = CASES[1]
    traced = report_of(render(workload, chosen, traced=True), "sm_90a")
    assert traced.resources.spill_bytes == 0
    assert traced.code != report_of(render(workload, chosen), "sm_90a").code


@pytest.mark.parametrize(
    "changes",
    [{"num_stages": 4}, {"num_warps": 4}, {"split_k": (1, 2)}, {"resident_ctas": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_every_axis_of_the_engine_changes_the_source(changes: dict[str, object]) -> None:
    chosen = simt((1, 32, 256))
    changed = replace(chosen, **changes)  # type: ignore[arg-type]
    assert render(PLAIN, changed).splitlines()[6:] != render(PLAIN, chosen).splitlines()[6:]
