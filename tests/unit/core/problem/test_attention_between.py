"""An attention between products: dependencies, the shared cache, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.between import between
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.ops.attention.shapes.form import form_for
from tuner.ops.gemm.op import GemmOp


@pytest.mark.parametrize("num_behind", [0, 1, 3])
@pytest.mark.parametrize("rotary", [True, False])
def test_ops_are_in_the_order_of_their_launches_and_survive_json(rotary: bool, num_behind: int) -> None:
    workload = between(rotary=rotary, num_behind=num_behind)
    names = ["qkv", "attention", "o_proj", "gate_up", "down"][: 2 + num_behind]
    assert [op.name for op in workload.ops] == names
    back = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert (back, back.digest) == (workload, workload.digest)
    assert workload.forced_starts == ((1,) if num_behind else ())
    assert workload.sides == (((0,), tuple(range(1, 1 + num_behind))) if num_behind else ((0,),))


def test_no_edge_of_tiles_goes_through_the_attention() -> None:
    workload = between()
    assert workload.producers_of(1) == ()
    assert workload.producer_of(1) is None
    assert not workload.is_independent
    assert [op.name for op in workload.ops if workload.leaves(op)] == ["o_proj"]
    alone = between(num_behind=0)
    assert [op.name for op in alone.ops if alone.leaves(op)] == ["attention"]


def test_a_cache_has_one_name_where_it_is_written_and_read() -> None:
    workload = between()
    qkv, o_proj = workload.tile_ops
    own = workload.operands_of(qkv)
    assert "qkv.frequencies" in own
    assert not {"qkv.keys", "qkv.values", "qkv.lengths"} & set(own)
    assert workload.operands_of(workload.launch_ops[0]) == ("attention.keys", "attention.values", "attention.lengths")
    assert workload.operands_of(o_proj) == o_proj.operands
    assert workload.cache_name_of(qkv) == "attention"
    assert replace(workload, ops=workload.tile_ops).cache_name_of(qkv) == "qkv"
    assert workload.turned_for is workload.launch_ops[0]
    assert between(rotary=False).turned_for is None


def test_bytes_count_new_keys_and_values_as_written_and_not_as_read() -> None:
    """4 rows; qkv has 512 columns, 256 of which are keys and values; the cache has 512 tokens per sequence."""
    workload = between(norm=False)
    weights, cache, x, new, out = 512 * 256 + 256 * 256, 2 * 4 * 512 * 128, 4 * 256, 4 * 256, 4 * 256
    assert workload.compulsory_read_bytes == 2 * (weights + cache + x - new)
    assert workload.compulsory_bytes == 2 * (weights + cache + x - new + new + out)
    plain = between(norm=False, rotary=False)
    assert plain.compulsory_bytes == 2 * (256 * 256 * 2 + cache + x + out)


@pytest.mark.parametrize(
    ("changed", "field", "problem"),
    [
        ({"kv_heads": 1, "query_heads": 4}, "kv_heads", "is 1, but qkv"),
        ({"query_heads": 4}, "heads", "is 8, but qkv"),
        ({"head_dim": 128, "query_heads": 1}, "heads", "is 2, but qkv"),
        ({"head_dim": 128}, "head_dim", "is 128, but qkv"),
        ({"max_length": 256}, "max_length", "is 256, but qkv"),
        ({"new_tokens": 2, "sequences": 2}, "new_tokens", "is 2, but qkv"),
        ({"sequences": 8}, "sequences", "is 8, but qkv"),
    ],
)
def test_an_attention_of_another_cache_than_the_product_writes_is_refused(
    changed: dict[str, int], field: str, problem: str
) -> None:
    workload = between(num_behind=0)
    (attention,) = workload.launch_ops
    other = replace(attention, shape=replace(attention.shape, **changed))
    with pytest.raises(InvalidInput, match=problem) as caught:
        replace(workload, ops=(workload.ops[0], other, *workload.ops[2:]))
    assert caught.value.field == f"attention.{field}"
    assert "use" in caught.value.remedy


def test_a_cache_of_pages_has_one_table_where_it_is_written_and_read() -> None:
    workload = between(pages={"page_tokens": 32, "heads_first": False})
    qkv = workload.tile_ops[0]
    assert not {"qkv.keys", "qkv.values", "qkv.lengths", "qkv.pages"} & set(workload.operands_of(qkv))
    assert workload.operands_of(workload.launch_ops[0])[-1] == "attention.pages"
    back = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert (back, back.digest) == (workload, workload.digest)
    assert "rotary to pages of 32, tokens first" in workload.describe()


@pytest.mark.parametrize(
    ("written", "read", "field", "problem"),
    [
        ({}, {"page_tokens": 16}, "page_tokens", "is 16, but qkv, whose queries and cache it reads, has null"),
        ({"page_tokens": 16}, {}, "page_tokens", "is null, but qkv, whose queries and cache it reads, has 16"),
        ({"page_tokens": 16}, {"page_tokens": 64}, "page_tokens", "is 64, but qkv"),
        ({"page_tokens": 16}, {"page_tokens": 16, "heads_first": False}, "heads_first", "is false, but qkv"),
    ],
)
def test_pages_that_are_not_those_that_the_product_writes_are_refused(
    written: dict[str, Any], read: dict[str, Any], field: str, problem: str
) -> None:
    workload = between(pages=written)
    (attention,) = workload.launch_ops
    other = replace(attention, form=form_for(attention.shape, **read))
    with pytest.raises(InvalidInput, match=problem) as caught:
        replace(workload, ops=(workload.ops[0], other, *workload.ops[2:]))
    assert caught.value.field == f"attention.{field}"
    plain = between(rotary=False)
    assert replace(plain, ops=(plain.ops[0], other, *plain.ops[2:])).launch_ops == (other,)


def test_queries_of_another_shape_are_refused() -> None:
    plain = between(rotary=False)
    wide = replace(plain.tile_ops[0], n=512)
    with pytest.raises(InvalidInput, match=r"attention\.source: reads qkv as \[4, 256\], but it is \[4, 512\]"):
        replace(plain, ops=(wide, *plain.ops[1:]))


def _next_qkv(workload: Workload) -> GemmOp:
    return replace(workload.tile_ops[0], name="next_qkv", source="o_proj", norm="o_proj")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda w: {"ops": (*w.ops[:2], replace(w.ops[2], source="y"))}, "o_proj comes after .* does not read it"),
        (lambda w: {"ops": (*w.ops[:2], replace(w.ops[2], residual_source="qkv"))}, "o_proj reads qkv, whose keys"),
        (lambda w: {"ops": (*w.ops, _next_qkv(w))}, "qkv and next_qkv both write to a cache"),
        (
            lambda w: {"ops": (*w.ops, replace(w.ops[1], name="b"))},
            "attention and b read qkv, .* to the cache of one",
        ),
        (lambda w: {"ops": (w.ops[1], w.ops[0], w.ops[2])}, "attention reads qkv, which a later op writes"),
        (lambda w: {"ops": (w.ops[0], w.ops[2], w.ops[1])}, "o_proj reads attention, which a later op writes"),
    ],
)
def test_what_stands_wrong_around_an_attention_is_refused(change: Any, problem: str) -> None:
    workload = between()
    with pytest.raises(InvalidInput, match=problem) as caught:
        replace(workload, **change(workload))
    assert caught.value.remedy
