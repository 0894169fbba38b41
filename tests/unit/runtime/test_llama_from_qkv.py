"""examples/llama_from_qkv.py with a tiny model on the CPU; requires PyTorch and transformers."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("llama_from_qkv", ROOT / "examples" / "llama_from_qkv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_from_qkv"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("is_changed", [False, True])
def test_logits_and_caches_are_transformers_and_a_changed_weight_shows(example: Any, is_changed: bool) -> None:
    with torch.inference_mode():
        model = example.build(example.TINY, "cpu")
        for layer in model.model.layers:  # norms that do something
            layer.input_layernorm.weight.mul_(torch.linspace(0.5, 2, 64))
            layer.post_attention_layernorm.weight.mul_(torch.linspace(2, 0.5, 64))
        model.model.norm.weight.mul_(1.5)
        decoder = example.Decoder.of(model, 3, 64)
        caches = example.caches_of(decoder)
        read, wanted = example.generate(decoder, 6)
        tuned = example.OperatorDecoder(example.Weights.taken_from(model), caches, 32)
        if is_changed:
            tuned.weights.layers[1]["o_proj.w"] = torch.zeros(64, 64, dtype=torch.bfloat16)
        found = example.retell(tuned, read, 32, tuned.step)
    assert tuned.lengths.tolist() == [38] * 3
    error = example.worst_error(found, wanted)
    assert error > 0.1 if is_changed else error < 0.02
    for (keys, values), layer in zip(caches, decoder.cache.layers, strict=True):
        for ours, theirs in ((keys, layer.keys), (values, layer.values)):
            assert is_changed or example.worst_error([ours[:, :, :38]], [theirs[:, :, :38]]) < 0.02


def test_a_layer_of_another_cache_is_refused_by_its_length(example: Any) -> None:
    layer = SimpleNamespace(shape=lambda tensor: (1, 8, 2048, 128))
    asked: list[Any] = []

    def ask(*ops: str, **sizes: int) -> Any:
        asked.append((ops, sizes))
        return layer

    pack = SimpleNamespace(layer=ask)
    assert example.layer_of(pack, 1, 2048) is layer
    assert asked == [(("qkv", "attention", "o_proj", "gate_up", "down"), {"sequences": 1, "length": 2048})]
    with pytest.raises(SystemExit, match="caches of 2048 tokens: use --length 2048"):
        example.layer_of(pack, 1, 1024)


def test_the_smoke_test_holds(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--tiny"]) == 0
    assert "logits of 8 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example.main([])
