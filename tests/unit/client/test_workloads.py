"""The client makes the same workload from a pair as the service, for every kind of pair."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.support.presets import LayerRun, Run, decoder_block, decoder_layer
from tuner.core.problem.asked import workload_of
from tuner.wire.requests.pairs import Asked, pair_of
from tuner.wire.requests.pairs import workload_of as services

FFN = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 128}
HEADS = {"sequences": 4, "max_length": 512, "heads": 8, "kv_heads": 2, "head_dim": 64}
GEMM = {"m": 64, "n": 32, "k": 128}
BY_NAME = {"model": "llama3-8b", "sequences": 2, "max_length": 256}
ASKED: list[dict[str, Any]] = [
    FFN,
    {**FFN, "dtype": "bf16", "activation": "silu", "gated": True, "bias": True, "residual": True, "row_scale": True},
    {"kind": "independent", "first": GEMM, "second": {**GEMM, "n": 256}},
    {"kind": "attention", **HEADS},
    {"kind": "attention", **HEADS, "d_out": 512, "page_tokens": 16, "window": 128, "soft_cap": 30.0, "scale": 0.1},
    {"kind": "attention", **HEADS, "page_tokens": 32, "heads_first": False, "new_tokens": 2, "lengths": "uniform"},
    {"kind": "decoder-block", "model": "llama3-8b", "m": 16, "tp": 2, "run": "mlp"},
    {"kind": "decoder-attention", **BY_NAME, "projection": False, "dtype": "bf16", "window": 64},
    {"kind": "decoder-layer", **BY_NAME},
    {"kind": "decoder-layer", **BY_NAME, "run": "qkv_attention", "page_tokens": 16},
]
CHAINS = [
    decoder_block("llama3-8b", m=16, tp=1, run=Run.BLOCK),
    decoder_block("qwen2.5-7b", m=8, tp=2, run=Run.QKV),
    decoder_layer("llama3-8b", sequences=2, max_length=256, run=LayerRun.LAYER),
    decoder_layer("llama3-8b", sequences=2, max_length=256, run=LayerRun.QKV_ATTENTION, page_tokens=16),
    decoder_layer("qwen2.5-7b", sequences=2, max_length=256, run=LayerRun.ATTENTION, rotary=False),
]


@pytest.mark.parametrize("pair", ASKED, ids=str)
def test_of_each_kind_it_is_that_of_the_service(pair: dict[str, Any]) -> None:
    service = services(TypeAdapter(Asked).validate_python(pair))
    assert workload_of(pair) == service


@pytest.mark.parametrize("workload", CHAINS, ids=lambda workload: workload.digest)
def test_of_a_job_it_is_that_which_the_job_has(workload: Any) -> None:
    pair = pair_of(workload).model_dump(mode="json", exclude_none=True)
    assert workload_of(pair) == workload
    assert workload_of(pair_of(workload).model_dump(mode="json")) == workload
