"""Guarded and safe builds compile without a GPU, without spills or warnings."""

from __future__ import annotations

import pytest

from tests.compile.golden import CASES
from tests.support.lanes import soak_unless
from tests.support.reports import report_of
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

BUILDS = [
    ("simt_gated", Variant.GUARDED, "sm_80"),
    ("mma_gated_split", Variant.GUARDED, "sm_80"),
    ("mma_plain", Variant.GUARDED, "sm_90a"),
    ("wgmma_cluster", Variant.SAFE, "sm_90a"),
    ("wgmma_ping_pong", Variant.SAFE, "sm_90a"),
    ("wgmma_decode", Variant.GUARDED, "sm_90a"),
]


@pytest.mark.parametrize(("name", "variant", "arch"), soak_unless(lambda place, _: place % 2 == 0, BUILDS), ids=str)
def test_a_variant_compiles_without_spills_or_warnings(name: str, variant: Variant, arch: str) -> None:
    workload, tiling = CASES[name]
    resources = report_of(render(workload, tiling, variant=variant), arch).resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
