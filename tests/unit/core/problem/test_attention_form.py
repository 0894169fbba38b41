"""Pages, windows and soft caps of an attention: JSON, sizes, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.attentions import attention
from tests.support.presets import decoder_layer
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.ops.attention.op import AttentionOp, Lengths
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm, form_for, form_to_json
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.packs.shapes import shape_of

SHAPE = DecodeAttention(sequences=4, kv_heads=8, query_heads=4, head_dim=128, max_length=500)
FIELDS: list[dict[str, Any]] = [
    {},
    {"page_tokens": 16},
    {"page_tokens": 64, "heads_first": False, "window": 7},
    {"window": 499, "soft_cap": 30.0},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_form_survives_its_json(fields: dict[str, Any]) -> None:
    form = form_for(SHAPE, **fields)
    assert form_to_json(form) == fields
    assert form_for(SHAPE, **form_to_json(form)) == form
    workload = attention(form=fields, max_length=500)
    assert Workload.from_json(workload.to_json()) == workload


def test_workloads_of_different_forms_have_different_digests() -> None:
    assert len({attention(form=fields).digest for fields in FIELDS}) == len(FIELDS)


def test_pages_are_as_many_as_all_longest_contexts_have() -> None:
    assert form_for(SHAPE, page_tokens=16).paged == PagedCache(num_pages=4 * 32, page_tokens=16)
    (op,) = attention(form={"page_tokens": 16, "heads_first": False}).launch_ops
    assert op.cache_shape == (4 * 44, 16, 2, 64)
    with pytest.raises(InvalidInput, match="175 pages, but the longest contexts need 176"):
        replace(op, form=AttentionForm(paged=PagedCache(num_pages=175, page_tokens=16)))


def test_a_window_that_hides_nothing_is_none() -> None:
    assert form_for(SHAPE, window=500) == PLAIN
    assert form_for(SHAPE, window=499).window == 499


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"page_tokens": 128}, "page_tokens", "use one of 16, 32, 64"),
        ({"window": 0}, "window", "use 1 or more"),
        ({"soft_cap": float("inf")}, "soft_cap", "use a finite number above 0"),
        ({"heads_first": False}, "heads_first", "set page_tokens too"),
    ],
)
def test_a_bad_field_is_named_with_what_would_be_right(fields: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        form_for(SHAPE, **fields)
    assert refused.value.field == field


def test_a_window_reads_and_computes_less() -> None:
    (whole,), (seen,) = attention().launch_ops, attention(form={"window": 100}).launch_ops
    assert (whole.num_tokens, seen.num_tokens) == (4 * 700, 4 * 100)
    assert seen.cache_bytes * 7 == whole.cache_bytes
    (drawn,) = attention(form={"window": 100}, lengths=Lengths.UNIFORM).launch_ops
    assert drawn.num_tokens == sum(min(length, 100) for length in drawn.timed_lengths)


@pytest.mark.parametrize("lengths", Lengths)
def test_it_is_timed_at_contexts_as_they_are_served_and_reaches_the_longest(lengths: Lengths) -> None:
    (plain,) = attention(lengths=lengths).launch_ops
    served = replace(plain, timed_length=100)
    assert max(served.timed_lengths) <= 100
    assert served.cache_bytes < plain.cache_bytes
    assert served.shape == plain.shape
    assert AttentionOp.from_json(served.to_json(), served.shape.dtype) == served
    assert "timed_length" not in plain.to_json()
    assert "timed at 100" in served.describe()


@pytest.mark.parametrize("timed_length", [0, 701])
def test_a_context_that_cannot_be_is_not_timed(timed_length: int) -> None:
    (plain,) = attention().launch_ops
    with pytest.raises(InvalidInput, match="1 to 700 tokens") as refused:
        replace(plain, timed_length=timed_length)
    assert refused.value.field == "timed_length"


def test_a_pack_has_one_shape_for_all_lengths_at_which_it_is_timed() -> None:
    asked: dict[str, Any] = {"dtype": Dtype.BF16, "sequences": 2, "max_length": 64, "page_tokens": 16}
    layer = decoder_layer("llama3-8b", **asked)
    served = replace(
        layer, ops=tuple(replace(op, timed_length=20) if op in layer.launch_ops else op for op in layer.ops)
    )
    assert served != layer
    assert shape_of(served.to_json()) == shape_of(layer.to_json())
