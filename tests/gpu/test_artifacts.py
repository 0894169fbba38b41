"""Artifacts on a card: each runs from its zip alone, in a process that knows no tuner, and checks its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import OnCard
from tests.support.conformance.table import CASES
from tests.support.on_card import check_artifact, problem

pytest.importorskip("cupy")


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
