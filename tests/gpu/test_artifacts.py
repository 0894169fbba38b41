"""Artifacts on a GPU: each runs from its zip alone, in a process without tuner, and checks its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import OnCard
from tests.support.conformance.schedules import wide
from tests.support.conformance.table import CASES
from tests.support.on_card import check_artifact, problem
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair

pytest.importorskip("cupy")

#: Enough tiles to fill a card with clusters of four.
WIDE = ffn_pair(m=160, d_in=1024, d_hidden=16384, d_out=1024)


@pytest.mark.parametrize("case", of_claim(CASES, Claim.ARTIFACT), ids=lambda case: case.id)
def test_an_artifact_runs_from_its_zip_alone(on_card: OnCard, case: Case, tmp_path: Path) -> None:
    candidate = on_card.candidate(case)
    manifest = check_artifact(on_card.builder, on_card.gpu, problem(case.workload), candidate, tmp_path)
    for launch in manifest["launches"]:
        assert launch["grid"][0] % launch["cluster"][0] == 0


@pytest.mark.parametrize("case", of_claim(CASES, Claim.CLUSTERS), ids=lambda case: case.id)
def test_the_driver_holds_as_many_clusters_as_the_plans_count_on(on_card: OnCard, case: Case) -> None:
    candidate = on_card.candidate(case)
    assert candidate.schedule is not None
    size = candidate.schedule.tiling.cluster_size
    kernel = on_card.kernel(on_card.ready(case.workload, candidate).work)
    print(f"clusters of {size}: the driver says {kernel.max_clusters()}")
    assert kernel.cluster_size == size
    assert kernel.max_clusters() >= on_card.gpu.num_clusters(size)


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_a_plan_takes_all_clusters_of_this_card_and_its_fallback_those_of_every_card(
    on_card: OnCard, live_gpu: Gpu, kind: PlanKind, tmp_path: Path
) -> None:
    schedule = wide(((128, 128, 64), (128, 64, 64)), cluster=(2, 2))
    candidate = Candidate(plan_kind=kind, schedule=schedule)
    held, common = live_gpu.num_clusters(4), live_gpu.num_common_clusters(4)
    print(f"clusters of 4: this card holds {held}, each {common}")
    if held <= common:
        pytest.skip(f"this card holds {held} clusters of 4, and each of its model {common}")
    manifest = check_artifact(on_card.builder, live_gpu, problem(WIDE), candidate, tmp_path)
    grids = [manifest[name][0]["grid"][0] for name in ("launches", "fallback_launches")]
    assert grids == [4 * held, 4 * common]
    check_artifact(on_card.builder, live_gpu, problem(WIDE), candidate, tmp_path, by_fallback=True)
