"""Decode attention in requests: what is accepted, and the message of each refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.presets import decoder_attention, decoder_block
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.trial.job import JobSpec
from tuner.errors import InvalidInput
from tuner.ops.attention.op import Lengths
from tuner.wire.requests.best_query import BestQuery
from tuner.wire.requests.pairs import Chain, pair_of, workload_of
from tuner.wire.requests.problems import of_validation
from tuner.wire.requests.requests import TuneRequest

SIZES: dict[str, Any] = {"sequences": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "max_length": 512}
ALONE = {"kind": "attention", **SIZES}
OP = {"op": "attention", "name": "attention", **SIZES}
O_PROJ = {"name": "o_proj", "source": "attention", "n": 4096, "k": 4096}


def chain(*ops: dict[str, Any], m: int = 4) -> dict[str, Any]:
    return {"kind": "chain", "m": m, "ops": list(ops)}


def asked(pair: dict[str, Any]) -> TuneRequest:
    return TuneRequest.model_validate({"pair": pair})


def refusal(pair: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        asked(pair).to_spec("simulated:h200")
    return error.value


LAYER = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 4, "max_length": 512}
TURN = {"heads": 32, "kv_heads": 8, "head_dim": 128, "max_length": 512}
QKV = {"name": "qkv", "source": "x", "norm": "x", "n": 6144, "k": 4096, "rotary": TURN}
FRONT = {**LAYER, "run": "qkv_attention"}
PAGED = {**ALONE, "page_tokens": 16}


@pytest.mark.parametrize(
    "pair",
    [
        ALONE,
        {**ALONE, "d_out": 4096},
        {**ALONE, "new_tokens": 2, "scale": 0.5},
        PAGED,
        {**PAGED, "heads_first": False, "window": 100, "soft_cap": 30.0, "d_out": 64},
    ],
)
def test_an_attention_survives_its_json_as_a_chain(pair: dict[str, Any]) -> None:
    workload = workload_of(asked(pair).pair)
    again = json.loads(pair_of(workload).model_dump_json())
    assert again["kind"] == "chain"
    assert workload_of(asked(again).pair) == workload


def test_what_is_asked_is_what_the_op_has() -> None:
    pair = {**PAGED, "heads_first": False, "window": 100, "soft_cap": 30.0}
    (op,) = workload_of(asked(pair).pair).launch_ops
    assert op.form.paged == PagedCache(num_pages=4 * 32, page_tokens=16, heads_first=False)
    assert (op.form.window, op.form.soft_cap) == (100, 30.0)
    assert op.operands[3:] == ("attention.pages",)
    assert "pages of 16, tokens first, window 100, soft cap 30" in op.describe()


def test_a_window_of_the_longest_context_is_none() -> None:
    assert workload_of(asked({**ALONE, "window": 512}).pair) == workload_of(asked(ALONE).pair)
    assert workload_of(asked({**ALONE, "window": 511}).pair) != workload_of(asked(ALONE).pair)


def test_a_chain_may_spell_the_pair_op_by_op() -> None:
    assert workload_of(asked(chain(OP, O_PROJ)).pair) == workload_of(asked({**ALONE, "d_out": 4096}).pair)


BEHIND = {**OP, "source": "qkv"}
ADDED = {**O_PROJ, "residual": "x"}


def test_an_attention_between_products_survives_its_json() -> None:
    workload = workload_of(asked(chain(QKV, BEHIND, ADDED)).pair)
    assert [op.name for op in workload.ops] == ["qkv", "attention", "o_proj"]
    assert workload.borders == (1,)
    again = json.loads(pair_of(workload).model_dump_json())
    assert [op["name"] for op in again["ops"]] == ["qkv", "attention", "o_proj"]
    assert workload_of(asked(again).pair) == workload
    spec = asked(again).to_spec("simulated:h200")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_models_layer_may_begin_with_its_qkv() -> None:
    shard = {**FRONT, "model": "llama3-70b", "tp": 8, "max_length": 2048, "sequences": 1}
    workload = workload_of(asked(shard).pair)
    assert [op.name for op in workload.ops] == ["qkv", "attention", "o_proj"]
    qkv, o_proj = workload.tile_ops
    assert (qkv.m, qkv.result_columns, qkv.k, qkv.norm) == (1, 1280, 8192, "residual")
    assert (o_proj.k, o_proj.n, o_proj.residual) == (1024, 8192, False), "the residual is added behind the all-reduce"
    assert workload.turned_for is workload.launch_ops[0]
    layer = workload_of(asked({**LAYER, "run": "from_qkv"}).pair)
    assert [op.name for op in layer.ops] == ["qkv", "attention", "o_proj", "gate_up", "down"]
    assert [op.residual_source for op in layer.tile_ops] == ["", "residual", "", "o_proj"]
    assert [op.is_output for op in layer.tile_ops] == [False] * 4
    query = BestQuery.model_validate({**shard, "target": "simulated:h200"})
    assert query.to_question(None).workload == workload


def test_a_models_attention_is_made_of_its_sizes() -> None:
    pair = {"kind": "decoder-attention", "model": "llama3-70b", "tp": 8, "sequences": 16, "max_length": 2048,
            "dtype": "bf16", "lengths": "uniform", "page_tokens": 32, "window": 1000}  # fmt: skip
    workload = workload_of(asked(pair).pair)
    assert workload == decoder_attention(
        "llama3-70b",
        tp=8,
        sequences=16,
        max_length=2048,
        dtype=Dtype.BF16,
        lengths=Lengths.UNIFORM,
        page_tokens=32,
        window=1000,
    )
    shape, (o_proj,) = workload.launch_ops[0].shape, workload.tile_ops
    assert (shape.kv_heads, shape.query_heads, o_proj.n, o_proj.k) == (1, 8, 8192, 1024)
    assert BestQuery.model_validate(pair).to_workload() == workload
    assert not workload_of(asked({**pair, "projection": False}).pair).tile_ops


def test_a_layer_is_its_attention_and_the_block_behind_it() -> None:
    pair = {**LAYER, "new_tokens": 2, "dtype": "bf16"}
    workload = workload_of(asked(pair).pair)
    assert [op.name for op in workload.ops] == ["attention", "o_proj", "gate_up", "down", "qkv"]
    assert workload.tile_ops[:3] == decoder_block("llama3-8b", m=8, dtype=Dtype.BF16).tile_ops[:3]
    assert workload.tile_ops[3].rotary == Rotary(heads=32, kv_heads=8, head_dim=128, max_length=512, new_tokens=2)
    plain = workload_of(asked({**pair, "rotary": False}).pair)
    assert plain.tile_ops == decoder_block("llama3-8b", m=8, dtype=Dtype.BF16).tile_ops
    assert plain.digest != workload.digest
    assert workload.launch_ops[0].shape.max_length == 512
    assert BestQuery.model_validate(pair).to_workload() == workload
    assert Workload.from_json(workload.to_json()) == workload
    assert workload_of(asked(Chain.from_workload(workload).model_dump(mode="json")).pair) == workload


@pytest.mark.parametrize(
    ("run", "ops"),
    [("attention", ["attention", "o_proj"]), ("mlp", ["gate_up", "down"]), ("qkv", ["qkv"])],
)
def test_a_rank_runs_what_lies_between_two_sums(run: str, ops: list[str]) -> None:
    workload = workload_of(asked({**LAYER, "tp": 8, "run": run}).pair)
    assert [op.name for op in workload.ops] == ops
    assert {op.m for op in workload.ops} == {4}


def test_a_layers_cache_may_have_pages_where_its_qkv_does_not_write() -> None:
    pair = {**LAYER, "rotary": False, "page_tokens": 32, "heads_first": False, "window": 100, "soft_cap": 30.0}
    workload = workload_of(asked(pair).pair)
    (attention,) = workload.launch_ops
    assert attention.form.paged is not None
    assert (attention.form.paged.page_tokens, attention.form.window, attention.form.soft_cap) == (32, 100, 30.0)
    assert [op.name for op in workload.ops] == ["attention", "o_proj", "gate_up", "down", "qkv"]
    assert workload_of(asked({**LAYER, "tp": 8, "run": "attention", "page_tokens": 16}).pair).launch_ops[0].form.paged


@pytest.mark.parametrize(
    ("pair", "field", "problem", "remedy"),
    [
        ({**ALONE, "kv_heads": 5}, "pair.heads", "32 query heads cannot share 5 KV heads", "multiple of kv_heads, 5"),
        ({**ALONE, "kv_heads": 1}, "pair.heads", "32 query heads share a KV head", "more kv_heads"),
        ({**ALONE, "head_dim": 80}, "pair.head_dim", "is not supported by any kernel", "64 or 128"),
        ({**ALONE, "new_tokens": 64}, "pair.new_tokens", "64 new tokens are prefill", "at most 8"),
        ({**ALONE, "window": 0}, "pair.window", "0 hides a query from itself", "1 or more"),
        ({**ALONE, "soft_cap": 0.0}, "pair.soft_cap", "0.0 is not a valid cap", "above 0"),
        ({**ALONE, "page_tokens": 24}, "pair.page_tokens", "is not supported by any kernel", "16, 32, 64"),
        ({**ALONE, "heads_first": False}, "pair.heads_first", "a contiguous cache is", "set page_tokens too"),
        ({**PAGED, "max_length": 2**26 - 1}, "pair.max_length", "at most 2147483647 rows", "shorter"),
        (chain({**OP, "window": -1}), "pair.ops.0.window", "-1 hides a query", "1 or more"),
        ({**ALONE, "max_length": 2, "new_tokens": 4}, "pair.max_length", "cannot hold the 4 new ones", "at least"),
        ({**ALONE, "scale": -1.0}, "pair.scale", "is not a valid scale", "above 0"),
        ({**ALONE, "max_length": 2**30}, "pair.max_length", "a cache has at most", "shorter"),
        (chain({**OP, "head_dim": 80}), "pair.ops.0.head_dim", "is not supported by any kernel", "64 or 128"),
        (chain(OP, m=8), "pair.m", "attention has 4 rows", "use 4"),
        (chain(OP, {**O_PROJ, "k": 512}), "pair.ops.1.k", "reads attention as [4, 512]", "the producer's"),
        (chain(OP, {**O_PROJ, "source": "x"}), "pair.ops", "does not read it", "let"),
        (chain(OP, {**O_PROJ, "norm": "attention"}), "pair.ops", "names it as source and norm", "source too"),
        (chain(OP, O_PROJ, {**O_PROJ, "name": "up"}), "pair.ops", "up comes after the attention", "the first"),
        ({**LAYER, "tp": 8}, "pair.run", "an all-reduce after o_proj", "attention, mlp or qkv"),
        ({**LAYER, "page_tokens": 24}, "pair.page_tokens", "is not supported by any kernel", "16, 32, 64"),
        ({**LAYER, "tp": 8, "run": "from_qkv"}, "pair.run", "an all-reduce", "use qkv_attention, att"),
        ({**FRONT, "rotary": False}, "pair.rotary", "a separate kernel would write to the cache", "leave it true"),
        ({**FRONT, "heads_first": False}, "pair.heads_first", "a contiguous cache is", "set page_tokens too"),
        ({**LAYER, "window": 0}, "pair.window", "0 hides a query from itself", "1 or more"),
        ({**LAYER, "tp": 3}, "pair.tp", "3 ranks cannot share", "use 1, 2, 4, 8"),
        ({**LAYER, "model": "qwen3-8b"}, "pair.model", "normalizes its queries and keys", "llama3-8b"),
        (chain(OP, {**OP, "name": "b"}), "pair.ops", "does not read it", "let"),
        (chain(OP, {**OP, "name": "b", "source": "attention"}), "pair.ops", "names it as", "let"),
        (chain({**OP, "source": "o_proj"}, O_PROJ), "pair.ops", "a cycle", "break it"),
        (chain(OP, {**O_PROJ, "name": "attention.keys"}), "pair.ops", "an operand of attention", "rename"),
        ({**LAYER, "new_tokens": 9}, "pair.new_tokens", "9 new tokens are prefill", "1 to 8"),
        ({**LAYER, "max_length": 2, "new_tokens": 4}, "pair.max_length", "2 tokens cannot hold the 4 new", "at least"),
        ({**LAYER, "max_length": 2**27}, "pair.max_length", "a cache has at most 2147483647", "shorter"),
        (chain({**QKV, "n": 4096}), "pair.ops.0.n", "is 4096, but heads of queries, keys and values", "use 6144"),
        (chain({**QKV, "rotary": {**TURN, "head_dim": 80}}), "pair.ops.0.rotary.head_dim", "80 is not", "64 or 128"),
        (chain({**QKV, "rotary": {**TURN, "kv_heads": 5}}), "pair.ops.0.rotary.heads", "cannot share 5", "multiple"),
        (chain({**QKV, "rotary": {**TURN, "new_tokens": 3}}), "pair.ops.0.rotary.new_tokens", "4 rows", "3 rows"),
        (chain({**QKV, "activation": "silu"}), "pair.ops.0.activation", "a bias and a norm", "leave it out"),
        (chain({**QKV, "residual": "r"}), "pair.ops.0.residual", "a bias and a norm", "leave it out"),
        (chain(QKV, {**QKV, "name": "b"}), "pair.ops", "both write to a cache", "cut the chain"),
        (chain(QKV, {**O_PROJ, "source": "qkv"}), "pair.ops", "whose keys and values go to a cache", "leave rotary"),
        (chain(QKV, {**BEHIND, "max_length": 256}), "pair.ops.1.max_length", "is 256, but qkv", "use 512 for both"),
        (chain(QKV, {**BEHIND, "heads": 16}), "pair.ops.1.heads", "is 16, but qkv", (
            "use 32 for both, or 16 for both"
        )),
        (chain(QKV, {**BEHIND, "page_tokens": 16}), "pair.ops.1.page_tokens", "is 16, but qkv", "null for both"),
        (chain({**QKV, "rotary": {**TURN, "page_tokens": 8}}), "pair.ops.0.rotary.page_tokens", "8 is not", "16, 32"),
        (chain({**QKV, "rotary": None}, BEHIND), "pair.ops.1.source", "reads qkv as [4, 4096]", "columns of all"),
        (chain(O_PROJ, BEHIND), "pair.ops", "o_proj reads attention, which a later op writes", "topological"),
        (chain(QKV, BEHIND, {**ADDED, "residual": "qkv"}), "pair.ops", "o_proj reads qkv, whose keys", "leave rotary"),
        (chain(QKV, BEHIND, {**O_PROJ, "source": "y"}), "pair.ops", "does not read it", "let"),
        ({**FRONT, "tp": 3}, "pair.tp", "3 ranks cannot share", "use 1, 2, 4, 8"),
    ],
)  # fmt: skip
def test_what_is_no_attention_is_refused_by_its_field(
    pair: dict[str, Any], field: str, problem: str, remedy: str
) -> None:
    error = refusal(pair)
    assert error.field == field
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("pair", "field", "problem"),
    [
        ({**ALONE, "sequences": 0}, "pair.sequences", "greater than or equal to 1"),
        ({**ALONE, "lengths": "random"}, "pair.lengths", "is not one of the choices"),
        (chain({**OP, "op": "pool"}), "pair.ops.0.op", "is not one of the choices"),
        (chain({**OP, "n": 4}), "pair.ops.0.n", "is not a known field"),
        ({**ALONE, "m": 4}, "pair.m", "is not a known field"),
    ],
)
def test_a_field_that_is_none_is_named(pair: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        asked(pair)
    found = of_validation(refused.value.errors()[0])
    assert found.field == field
    assert problem in found.problem
