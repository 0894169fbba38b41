"""Artifacts on a card: each runs from its zip alone, in a process that knows no tuner, and checks its numbers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import OnCard
from tests.support.conformance.table import CASES
from tests.support.on_card import EXAMPLE, problem
from tuner.core.trial.evaluator import Environment
from tuner.workers.builder.artifact import assemble

pytest.importorskip("cupy")


@pytest.mark.parametrize("case", of_claim(CASES, Claim.ARTIFACT), ids=lambda case: case.id)
def test_an_artifact_runs_from_its_zip_alone(on_card: OnCard, case: Case, tmp_path: Path) -> None:
    candidate = on_card.candidate(case)
    ready = on_card.ready(case.workload, candidate)
    assert ready.built
    here = Environment(gpu_name=on_card.gpu.name, simulated=False)
    made = assemble(problem(case.workload), candidate, ready.plans, ready.source, ready.built.cubin, here, {})
    for launch in made.manifest["launches"]:
        assert launch["grid"][0] % launch["cluster"][0] == 0
    archive_path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(archive_path, "w") as archive:
        for name, data in made.files.items():
            archive.writestr(name, data)
    ran = subprocess.run([sys.executable, str(EXAMPLE), str(archive_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("case", of_claim(CASES, Claim.CLUSTERS), ids=lambda case: case.id)
def test_the_driver_holds_as_many_clusters_as_the_plans_count_on(on_card: OnCard, case: Case) -> None:
    candidate = on_card.candidate(case)
    assert candidate.schedule is not None
    size = candidate.schedule.tiling.cluster_size
    kernel = on_card.kernel(on_card.ready(case.workload, candidate).work)
    print(f"clusters of {size}: the driver says {kernel.max_clusters()}")
    assert kernel.cluster_size == size
    assert kernel.max_clusters() >= on_card.gpu.num_clusters(size)
