"""A job of products around an attention on a card, and its artifact by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem
from tuner.client import Client
from tuner.core.legal.attention import attention_gpu_problem
from tuner.core.problem.presets import LayerRun, decoder_layer
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.demo import running_server

cupy = pytest.importorskip("cupy")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "layer",
    [
        {"model": "llama3-70b", "tp": 8, "sequences": 16, "max_length": 2048, "run": "qkv_attention"},
        {"model": "llama3-8b", "sequences": 1, "max_length": 512, "run": "from_qkv"},
    ],
    ids=["shard", "layer"],
)
def test_a_job_of_products_around_an_attention_ends_with_a_kernel_that_the_runtime_runs(
    on_card: OnCard, layer: dict[str, Any], tmp_path: Path
) -> None:
    if reason := attention_gpu_problem(on_card.gpu):
        pytest.skip(reason)
    from tuner.runtime import load_artifact
    from tuner.workers.gpu.check import _check_seed
    from tuner.workers.protocol.messages import Work

    with running_server(tmp_path / "data", "auto") as url, Client(url) as client:
        pair = {"kind": "decoder-layer", "dtype": "bf16", **layer}
        job_id = client.submit({"pair": pair, "budget": {"trials": 24, "seconds": 120}})["id"]
        for _ in client.events(job_id, timeout_s=240):
            pass
        job = client.job(job_id)
        assert job["state"] == "succeeded", job
        best = client.best(job_id)
        assert best["artifact"] is not None
        content = client.artifact(best["artifact"]["digest"]).content
    assert not best["simulated"], "another service has the card: run these tests one after the other"
    assert best["library"] is not None
    assert "scaled_dot_product_attention" in best["library"]["attention"]
    kinds = {row["candidate"]["plan_kind"] for row in best["finals"]}
    assert {"library", "n_launches", "n_launches_pdl"} <= kinds
    assert not kinds & {"fused", "fused_pdl", "two_streams"}
    for row in best["finals"]:
        print(row["candidate"]["plan_kind"], row["time_us"], row["speedup"], row["candidate"]["schedule"])
    (tmp_path / "best.zip").write_bytes(content)
    workload = decoder_layer(
        layer["model"], sequences=layer["sequences"], max_length=layer["max_length"], tp=layer.get("tp", 1),
        run=LayerRun(layer["run"]), dtype=Dtype.BF16,
    )  # fmt: skip
    prepared: Any = on_card.session._prepare(problem(workload))
    artifact, data = load_artifact(tmp_path / "best.zip"), prepared.data
    assert artifact.manifest["launch_order"][0] == {"list": "launches", "index": 0}
    given = dict(data._check_inputs[0])
    for index, op in enumerate(workload.numbered_ops):
        given[op.name] = data.outputs[0][index].bits
        if index < len(workload.ops):
            given[f"{op.name}.w"] = data._weights[0][index]
            if index in data.caches:
                given[f"{op.name}.frequencies"] = data.caches[index].frequencies
    launches = artifact.bind({name: array for name, array in given.items() if name in artifact.tensors})

    def run(ops: Any) -> None:
        cupy.cuda.Device().synchronize()  # the poison is on another stream
        for _ in range(3):
            launches.enqueue(prepared.stream.ptr)
        prepared.stream.synchronize()

    _check_seed(data, prepared.comparer, run, Work(plan_kind=PlanKind.LIBRARY), 0)
    assert artifact.refused() == ""
    assert not artifact.aborted()
