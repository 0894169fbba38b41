"""A model's config gives the attention of its decode steps, or a refusal that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.test_models import config
from tuner.client.model_attention import attention_pair
from tuner.errors import InvalidInput
from tuner.wire.attentions import Attention

#: By hand: heads, heads of the cache, elements of a head, hidden size, dtype.
EXPECTED = {
    "llama_3_8b": (32, 8, 128, 4096, "bf16"),
    "llama_3_70b": (64, 8, 128, 8192, "bf16"),
    "mistral_7b": (32, 8, 128, 4096, "bf16"),
    "qwen2_5_7b": (28, 4, 128, 3584, "bf16"),
    "qwen3_32b": (64, 8, 128, 5120, "bf16"),
    "llama_2_13b": (40, 40, 128, 5120, "fp16"),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_models_attention_is_that_which_was_written_by_hand(name: str, tp: int) -> None:
    heads, kv_heads, head_dim, hidden, dtype = EXPECTED[name]
    found = attention_pair(config(name), sequences=16, max_length=2048, tp=tp)
    sizes = {name: found[name] for name in ("heads", "kv_heads", "head_dim", "d_out", "dtype", "window")}
    assert sizes == {
        "heads": heads // tp,
        "kv_heads": kv_heads // tp,
        "head_dim": head_dim,
        "d_out": hidden,
        "dtype": dtype,
        "window": None,
    }
    workload = Attention(**found).to_workload()
    assert (workload.num_rows, workload.ops[0].n, workload.ops[0].k) == (16, hidden, heads // tp * head_dim)


def test_options_of_the_config_and_of_the_command_are_the_pairs() -> None:
    def asked(max_length: int = 8192, **changes: Any) -> dict[str, Any]:
        return attention_pair(config("mistral_7b", **changes), sequences=1, max_length=max_length)

    assert asked(sliding_window=4096)["window"] == 4096
    assert asked(4096, sliding_window=4096)["window"] is None, "it hides nothing"
    assert asked(sliding_window=4096, use_sliding_window=False)["window"] is None
    assert asked(attention_bias=True)["d_out"] is None, "o_proj has a bias, and the kernel has none"
    paged = attention_pair(config("llama_3_8b"), sequences=1, max_length=512, dtype="fp16", page_tokens=16)
    assert (paged["page_tokens"], paged["dtype"]) == (16, "fp16")


@pytest.mark.parametrize(
    ("name", "changes", "tp", "words"),
    [
        ("gemma_2_9b", {}, 1, "do not all have the same plain attention"),
        ("llama_3_8b", {}, 3, "num_attention_heads 32 is no multiple of it"),
        ("llama_3_8b", {}, 16, "num_key_value_heads 8 is no multiple of it"),
        ("llama_3_8b", {"num_experts": 8}, 1, "is a mixture of experts"),
        ("llama_3_8b", {"num_attention_heads": "many"}, 1, "should be a positive integer"),
        ("llama_3_8b", {"torch_dtype": "float32"}, 1, "say which by --dtype"),
    ],
)
def test_what_has_no_attention_here_is_refused(name: str, changes: dict[str, Any], tp: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        attention_pair(config(name, **changes), sequences=1, max_length=512, tp=tp)
