"""The only function that creates launchable kernels refuses combinations that do not belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.workers.source.test_launchable import PAIR, RELU, TILING, plans
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Tiling
from tuner.errors import ResourceError
from tuner.workers.builder.nvrtc import Built, Resources, build_key
from tuner.workers.builder.tie import tie
from tuner.workers.source.launchable import LaunchRefused
from tuner.workers.source.render import render

REPORTED = Resources(registers_per_thread=97, static_smem_bytes=512, spill_bytes=0, stack_bytes=0, warnings=())


def built(workload: Workload = PAIR, tiling: Tiling = TILING, arch: str = "sm_90a", **fields: Any) -> Built:
    """A build as the compiler would return it; nothing is compiled."""
    key = build_key(render(workload, tiling, traced=fields.pop("traced", False)), arch, "13.0")
    facts = {
        "key": key,
        "compiler": "13.0",
        "cubin": b"\x7fELF",
        "resources": REPORTED,
        "compile_s": 1.0,
        "cached": False,
    }
    return Built(**{**facts, **fields})


def test_plans_and_the_build_of_their_kernel_are_tied_with_what_the_compiler_told() -> None:
    launchable = tie(plans(), built(), PAIR)
    launchable.check()
    assert [plan.resources.registers_per_thread for plan in launchable.plans] == [97, 97]
    assert [plan.resources.smem_bytes for plan in launchable.plans] == [launchable.smem_bytes + 512] * 2
    assert launchable.ties.build == built().key
    traced = built(traced=True)
    assert tie(plans(), traced, PAIR, traced=True).ties.build == traced.key


@pytest.mark.parametrize(
    "wrong",
    [
        built(tiling=replace(TILING, num_stages=4)),
        built(RELU),
        built(arch="sm_80"),
        built(traced=True),
        built(key="0" * 64),
        built(compiler="12.8"),
    ],
    ids=["another tiling", "another workload", "another GPU", "a traced one", "any", "another compiler"],
)
def test_another_kernels_build_is_refused(wrong: Built) -> None:
    with pytest.raises(LaunchRefused, match="does not belong to ffn fp16"):
        tie(plans(), wrong, PAIR)


def test_plans_of_another_workload_or_of_two_tilings_are_refused() -> None:
    with pytest.raises(LaunchRefused, match=r"plan 0 is for ffn fp16 M=32 64 -> 128 -> 64, not ffn .* relu"):
        tie(plans(), built(RELU), RELU)
    mixed = (plans()[0], plans(tiles=replace(TILING, num_stages=4))[1])
    with pytest.raises(LaunchRefused, match=r"plan 1 is for mma .* s4 .* on h200, but plan 0 for mma .* s3 .* on h200"):
        tie(mixed, built(), PAIR)


def test_what_the_compiler_told_is_proven_again() -> None:
    proven = plans(kind=PlanKind.FUSED, assignment=Assignment.STATIC)
    assert tie(proven, built(), PAIR).plans[0].plan.num_ctas == 12
    with pytest.raises(ResourceError, match="allow 0 per SM"):
        tie(proven, built(resources=replace(REPORTED, static_smem_bytes=300_000)), PAIR)
