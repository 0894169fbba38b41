"""Decode attention: which shapes are refused, and the messages."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.ops.attention.shapes.shape import DecodeAttention

SHAPE: dict[str, Any] = {"sequences": 4, "kv_heads": 8, "query_heads": 4, "head_dim": 128, "max_length": 512}


def test_a_shape_knows_its_columns_scale_and_bytes() -> None:
    op = DecodeAttention(**SHAPE, new_tokens=2)
    assert (op.columns, op.cache_bytes(512)) == (8, 2 * 512 * 8 * 128 * 2)
    assert op.score_scale == pytest.approx(128**-0.5)
    assert DecodeAttention(**SHAPE, scale=0.3).score_scale == 0.3


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("sequences", 0, "from 1 to 32767"),
        ("sequences", 2**15, "from 1 to 32767"),
        ("kv_heads", 0, "from 1 to"),
        ("query_heads", 17, "from 1 to 16"),
        ("query_heads", 1.5, "whole number"),
        ("head_dim", 80, "use 64 or 128"),
        ("new_tokens", 0, "from 1 to 8"),
        ("new_tokens", 9, "prefill"),
        ("new_tokens", True, "whole number"),
        ("max_length", 0, "from 1 to"),
        ("max_length", 2**26, "a cache has at most"),
        ("scale", 0.0, "above 0"),
        ("scale", float("nan"), "above 0"),
    ],
)
def test_a_bad_field_is_named_with_what_would_be_right(field: str, value: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        DecodeAttention(**{**SHAPE, field: value})
    assert refused.value.field == field


def test_a_context_holds_its_new_tokens() -> None:
    with pytest.raises(InvalidInput, match="at least new_tokens, 4"):
        DecodeAttention(**{**SHAPE, "max_length": 3}, new_tokens=4)
