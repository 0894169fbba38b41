"""A job of products around an attention on a GPU, and its artifact run by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_jobs import best_of_job
from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem
from tests.support.presets import LayerRun, decoder_layer
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine

cupy = pytest.importorskip("cupy")


#: The ops between two all-reduces.
SHARD = {"model": "llama3-70b", "tp": 8, "sequences": 16, "max_length": 2048, "run": "qkv_attention"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "layer",
    [
        SHARD,
        {"model": "llama3-8b", "sequences": 1, "max_length": 512, "run": "from_qkv"},
        {**SHARD, "page_tokens": 16},
    ],
    ids=["shard", "layer", "shard of pages"],
)
def test_a_job_of_products_around_an_attention_ends_with_a_kernel_that_the_runtime_runs(
    on_card: OnCard, layer: dict[str, Any], tmp_path: Path
) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)
    from tuner.runtime import load_artifact
    from tuner.workers.gpu.tensors.check import _check_seed
    from tuner.workers.protocol.messages import Work

    best, content = best_of_job({"kind": "decoder-layer", **layer}, tmp_path)
    kinds = {row["candidate"]["plan_kind"] for row in best["finals"]}
    assert {"library", "n_launches", "n_launches_pdl"} <= kinds
    assert not kinds & {"fused", "fused_pdl", "two_streams"}
    (tmp_path / "best.zip").write_bytes(content)
    workload = decoder_layer(
        layer["model"], sequences=layer["sequences"], max_length=layer["max_length"], tp=layer.get("tp", 1),
        run=LayerRun(layer["run"]), dtype=Dtype.BF16, page_tokens=layer.get("page_tokens"),
    )  # fmt: skip
    prepared: Any = on_card.session._prepare(problem(workload))
    artifact, data = load_artifact(tmp_path / "best.zip"), prepared.data
    assert artifact.manifest["launch_order"][0] == {"list": "launches", "index": 0}
    given = dict(data._check_inputs[0])
    given |= {name: output.bits for name, output in data.outputs[0].items()}
    given |= {f"{op.name}.w": data._weights[0][index] for index, op in enumerate(workload.tile_ops)}
    given |= {f"{name}.frequencies": cache.frequencies for name, cache in data.caches.items()}
    launches = artifact.bind({name: array for name, array in given.items() if name in artifact.tensors})

    def run(ops: Any) -> None:
        cupy.cuda.Device().synchronize()  # the NaNs are written on another stream
        for _ in range(3):
            launches.enqueue(prepared.stream.ptr)
        prepared.stream.synchronize()

    _check_seed(data, prepared.comparer, run, Work(plan_kind=PlanKind.LIBRARY), 0)
    assert artifact.refused() == ""
    assert not artifact.aborted()
