"""examples/llama_attention.py on the CPU: transformers' own Llama with the operator; requires PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.repository import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The modules llama_attention and llama_decode."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names = ("llama_attention", "llama_decode")
    yield tuple(importlib.import_module(name) for name in names)  # type: ignore[misc]
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_attentions_are_replaced_and_the_logits_are_the_same(examples: tuple[Any, Any], compiled: bool) -> None:
    attention, decode = examples
    with torch.inference_mode():
        model = decode.build(decode.TINY, "cpu")
        count = sum(one.numel() for one in model.parameters())
        decoder = decode.Decoder.of(model, 3, 32)
        before = decoder.step(model)
        attention.replace_attentions(model, None)
        run = torch.compile(model, fullgraph=True) if compiled else model
        after = decoder.step(run)
        assert torch.equal(decoder.step(run), after), "a step leaves the cache as it was"
        assert decode.rel_error(after, before) < 1e-2
        held = {one.data_ptr(): one.numel() for one in (*model.parameters(), *model.buffers()) if one.dim() == 2}
        assert sum(held.values()) <= count, "no weight occurs twice"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            decoder.step(run)
        calls = [event.count for event in profile.key_averages() if event.key == "tuner::attention_proj"]
        assert calls == [model.config.num_hidden_layers]
        model.model.layers[1].self_attn.o_proj.weight.neg_()
        assert decode.rel_error(decoder.step(run), before) > 0.05, "its weights are what is computed"


def test_what_the_pack_has_not_is_refused(examples: tuple[Any, Any]) -> None:
    attention, decode = examples
    model = decode.build(decode.TINY, "cpu")

    class Nothing:
        def attention(self, **asked: Any) -> None:
            assert asked["dtype"] == "bfloat16"

    with pytest.raises(RuntimeError, match="no kernels for 2 sequences in a cache of 32 rows"):
        attention.replace_attentions(model, Nothing(), [(2, 32)])
    model.model.layers[0].self_attn.o_proj.bias = torch.nn.Parameter(torch.zeros(64))
    with pytest.raises(RuntimeError, match="o_proj has a bias"):
        attention.replace_attentions(model, None)
