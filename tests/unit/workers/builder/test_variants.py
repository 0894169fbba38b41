"""Variants of a kernel: their additions are in no other build, and an artifact lists its variants."""

from __future__ import annotations

import pytest

from tests.support.cases import H200, simt, wgmma
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import DEVICE_FILES, device_text, kernel_version, render, without_comments
from tuner.workers.source.variants import Variant, variants_of, with_switches

WORKLOAD = ffn_pair(m=48, d_in=64, d_hidden=128, d_out=128)
SIMT = simt((16, 64, 64))
MMA = Tiling(tiles=(Tile(m=16, n=32, k=32),) * 2, num_stages=3, num_warps=4)
WGMMA = wgmma((16, 64, 64))


def test_the_measured_source_has_nothing_of_a_variant() -> None:
    for tiling in (MMA, WGMMA):
        source = render(WORKLOAD, tiling)
        for word in ("TUNER_GUARDED", "TUNER_WAITS_FIRST", "host_record", "count_start", "count_end"):
            assert word not in source


def test_a_change_of_a_variants_code_changes_no_version_of_the_kernels() -> None:
    """Results remain exact matches."""
    names = {name for files in DEVICE_FILES.values() for name in files}
    switched = [name for name in names if with_switches(device_text(name), Variant.SAFE) != device_text(name)]
    assert len(switched) >= 4
    for name in switched:
        assert "TUNER_" not in without_comments(with_switches(device_text(name), Variant.MEASURED)).replace(
            "TUNER_CONFIG", ""
        ).replace("TUNER_CLUSTER_DIMS", "").replace("TUNER_OWN_TASKS", "").replace("TUNER_GATHERS", "")
    assert "host_record.cuh" not in names
    assert len(kernel_version()) == 12


def test_a_guarded_source_counts_its_ctas_and_tells_the_host() -> None:
    for tiling in (MMA, WGMMA):
        source = render(WORKLOAD, tiling, variant=Variant.GUARDED)
        for call in ("tell_host(workspace);", " count_start(args);", " count_end(args);"):
            assert source.count(call) == 1
        assert "#ifdef TUNER_GUARDED" not in source


def body_of(source: str, head: str) -> str:
    """The parameters and body of the function whose text begins with `head`."""
    _, found, rest = source.partition(head)
    assert found
    return rest.partition("\n}\n")[0]


@pytest.mark.parametrize("tiling", [SIMT, MMA, WGMMA], ids=["simt", "mma", "wgmma"])
@pytest.mark.parametrize("variant", list(Variant))
def test_only_the_measured_build_lets_the_next_launch_in_before_its_own_wait(tiling: Tiling, variant: Variant) -> None:
    """A programmatic kernel of another program may read memory written by the launch before ours."""
    lets_in, waits = "  launch_dependents();", "  wait_for_prerequisites();"
    source = without_comments(render(WORKLOAD, tiling, variant=variant))
    if tiling is WGMMA:
        early, late = body_of(source, " tuner_chain("), body_of(source, "void produce_inputs(")
    else:
        early, _, late = body_of(source, "void begin_launch(").partition(waits)
        late = waits + late
    assert (lets_in in early) == (variant is Variant.MEASURED)
    assert (f"{waits}\n{lets_in}\n" in f"{late}\n") == (variant is not Variant.MEASURED)


def test_a_safe_source_waits_before_it_requests_the_first_weights() -> None:
    def first_lines(variant: Variant) -> str:
        return render(WORKLOAD, WGMMA, variant=variant).partition("int request_known_weights(")[2][:300]

    assert "wait_for_prerequisites();" in first_lines(Variant.SAFE)
    assert "wait_for_prerequisites();" not in first_lines(Variant.GUARDED)


def with_assignment(tiling: Tiling, kind: PlanKind, assignment: Assignment) -> Candidate:
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=assignment)
    return Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering))


@pytest.mark.parametrize(
    ("tiling", "kind", "assignment", "reads_early"),
    [
        (WGMMA, PlanKind.FUSED_PDL, Assignment.STATIC, True),
        (WGMMA, PlanKind.FUSED_PDL, Assignment.TICKET, False),
        (WGMMA, PlanKind.FUSED, Assignment.STATIC, False),
        (MMA, PlanKind.FUSED_PDL, Assignment.STATIC, False),
    ],
)
def test_only_a_kernel_that_reads_weights_early_has_a_safe_variant(
    tiling: Tiling, kind: PlanKind, assignment: Assignment, reads_early: bool
) -> None:
    plans = plans_for(WORKLOAD, H200, with_assignment(tiling, kind, assignment))
    offered = variants_of(plans, programmatic=kind.is_programmatic)
    assert offered == ((Variant.GUARDED, Variant.SAFE) if reads_early else (Variant.GUARDED,))
