"""`tune-model` reads a config as transformers' own class of that family does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.client.transformers_says import CHANGES, TABLE
from tuner.client.models.model_families import FAMILIES
from tuner.client.models.models import ffn_shapes
from tuner.ops.attention.model_layers import layer_attentions
from tuner.ops.attention.models import attention_pairs

ROWS = json.loads(TABLE.read_text())["rows"]
#: Our activations by transformers' names.
ACTIVATIONS = {"silu": "silu", "relu": "relu", "gelu_pytorch_tanh": "gelu"}


def test_every_family_has_many_rows() -> None:
    assert FAMILIES.keys() == CHANGES.keys() == {row["config"]["model_type"] for row in ROWS}
    assert len(ROWS) >= 80


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, list(row["config"].items())[0::5])))
def test_a_config_is_read_as_transformers_reads_it(row: dict[str, Any]) -> None:
    says = row["says"]
    [(shape, layers)] = ffn_shapes(row["config"], dtype="bf16").items()
    assert (shape.d_in, shape.d_hidden, shape.d_out) == (
        says["hidden_size"],
        says["intermediate_size"],
        says["hidden_size"],
    )
    assert (shape.activation, shape.bias) == (ACTIVATIONS[says["activation"]], says["mlp_bias"])
    found = layer_attentions(row["config"])
    assert layers == sum(found.values()) == sum(count for *_, count in says["layers"])
    kinds = [[one.window, one.rotary, one.turned_part or 1.0, count] for one, count in found.items()]
    assert kinds == says["layers"]
    divisor = says["score_divisor"]
    usual = divisor in (None, says["head_dim"])
    for one in found:
        assert (one.heads, one.kv_heads, one.head_dim) == (says["heads"], says["kv_heads"], says["head_dim"])
        assert (one.qkv_bias, one.out_bias) == (says["qkv_bias"], says["out_bias"])
        assert (one.scale, one.soft_cap) == (None if usual else pytest.approx(divisor**-0.5), says["soft_cap"])
    family = FAMILIES[row["config"]["model_type"]]
    assert (family.norms_queries, family.defaults["rms_norm_eps"]) == (says["norms_queries"], says["eps"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, list(row["config"].items())[0::5])))
def test_each_window_of_the_layers_is_a_pair_of_its_own(row: dict[str, Any]) -> None:
    pairs = attention_pairs(row["config"], sequences=1, max_length=1024 * 1024, dtype="bf16")
    assert [pair["window"] for pair in pairs] == list(dict.fromkeys(window for window, *_ in row["says"]["layers"]))
