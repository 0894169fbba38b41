"""What `tuner-client pack` orders of finished jobs, and what it says of those that no pack holds."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tuner.client.packs import order_of_jobs
from tuner.core.problem.presets import LayerRun, Run, decoder_block, decoder_layer
from tuner.core.problem.workload import Workload, independent_pair
from tuner.wire.requests import pair_of


def job(workload: Workload, job_id: str = "job-1") -> dict[str, Any]:
    """As `GET /jobs/{id}` answers it."""
    return {
        "id": job_id,
        "pair": pair_of(workload).model_dump(mode="json"),
        "target": "h200",
        "objective": {"l2": "cold"},
    }


@pytest.mark.parametrize(
    "workload",
    [
        decoder_block("llama3-8b", m=16),
        decoder_block("llama3-70b", m=16, tp=8, run=Run.MLP),
        independent_pair((16, 512, 512), (16, 256, 512)),
    ],
    ids=["decoder-block", "mlp", "independent"],
)
def test_a_job_that_no_pack_holds_is_told_how_its_kernels_are_taken_home(workload: Workload) -> None:
    with pytest.raises(click.UsageError) as refused:
        order_of_jobs([job(workload, "job-7")], 1.02)
    for words in ("no place in a pack", "fetch best --job job-7", "tuner.runtime.load_artifact"):
        assert words in str(refused.value), words


def test_a_layer_around_an_attention_has_a_place() -> None:
    run = decoder_layer("llama3-70b", sequences=1, max_length=512, tp=8, run=LayerRun.QKV_ATTENTION)
    order = order_of_jobs([job(run)], 1.02)
    assert (order["shapes"], len(order["layers"])) == ([], 1)
