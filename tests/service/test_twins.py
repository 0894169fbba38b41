"""Any GPU of the catalogue can be simulated: its simulation finishes a job with the engines that it has, and names the
GPU."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.service.api.test_chains import submit
from tests.support.lanes import one_in
from tests.support.serving import listening, running_service
from tuner.core.model.rates import fit_of

PAIR = {"kind": "ffn", "m": 16, "d_in": 512, "d_hidden": 1024, "d_out": 512, "gated": True, "activation": "silu"}


# In CI, tests/unit/core/space has the space of another GPU, and all jobs are those of a twin.
@pytest.mark.soak
@pytest.mark.parametrize("gpu", one_in(4, ["h100", "a100", "l40s", "rtx5090"]))
def test_a_twin_ends_a_job_with_engines_that_the_gpu_has(gpu: str, tmp_path: Path) -> None:
    with (
        running_service(tmp_path, target=f"simulated:{gpu}") as service,
        listening(service) as url,
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        best = http.get(submit(http, PAIR)["links"]["best"]).json()
        (target,) = http.get("/targets").json()
    schedules = [row["candidate"]["schedule"] for row in best["finals"] if row["candidate"]["schedule"]]
    engines = {schedule["tiling"].get("engine", "mma") for schedule in schedules}
    is_fitted = fit_of(gpu) is not None
    assert engines <= ({"mma", "simt", "wgmma"} if gpu == "h100" else {"mma", "simt"})
    assert best["environment"]["simulated"]
    assert is_fitted or gpu != "h100"
    assert ("by its data sheet" in best["environment"]["gpu_name"]) is not is_fitted
    assert ("fitted to" in target["forecasts"]) == is_fitted
