"""examples/llama_layers.py with a tiny model on the CPU; requires PyTorch and transformers."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from tests.support.repository import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("llama_layers", ROOT / "examples" / "llama_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_layers"] = module  # a dataclass looks up its module
    spec.loader.exec_module(module)
    return module


def tuned_of(example: Any, model: Any, caches: Any, changed: Any = None, *, has_last: bool = False) -> Any:
    weights = example.Weights.taken_from(model)

    def block(given: Any) -> None:
        example.block_by_pytorch({**given, **(changed or {})}, weights.eps)

    return example.TunedDecoder(
        weights,
        caches,
        32,
        lambda tensors: example.Formula(example.attention_by_pytorch, tensors),
        lambda tensors: example.Formula(block, tensors),
        (lambda tensors: example.Formula(block, tensors)) if has_last else None,
    )


@pytest.mark.parametrize(("is_changed", "has_last"), [(False, False), (True, False), (False, True)])
def test_logits_of_generated_tokens_are_transformers_and_a_changed_weight_shows(
    example: Any, is_changed: bool, has_last: bool
) -> None:
    with torch.inference_mode():
        model = example.build(example.TINY, "cpu")
        for layer in model.model.layers:  # norms that do something
            layer.input_layernorm.weight.mul_(torch.linspace(0.5, 2, 64))
            layer.post_attention_layernorm.weight.mul_(torch.linspace(2, 0.5, 64))
        model.model.norm.weight.mul_(1.5)
        decoder = example.Decoder.of(model, 3, 64)
        caches = example.caches_of(decoder)
        read, wanted = example.generate(decoder, 6)
        changed = {"o_proj.w": torch.zeros(64, 64, dtype=torch.bfloat16)} if is_changed else None
        tuned = tuned_of(example, model, caches, changed, has_last=has_last)
        assert ("qkv.w" in tuned.tensors[-1]) == (not has_last)
        found = example.retell(tuned, read, 32, tuned.step)
    assert wanted.shape == (6, 3, 97)
    assert tuned.lengths.tolist() == [38] * 3
    error = example.worst_error(found, wanted)
    assert error > 0.1 if is_changed else error < 0.02
    for (keys, values), layer in zip(caches, decoder.cache.layers, strict=True):
        assert is_changed or example.worst_error([keys[:, :, :38]], [layer.keys[:, :, :38]]) < 0.02
        assert is_changed or example.worst_error([values[:, :, :38]], [layer.values[:, :, :38]]) < 0.02


def test_no_weight_is_there_twice(example: Any) -> None:
    with torch.inference_mode():
        model = example.build(example.TINY, "cpu")
        count = sum(one.numel() for one in model.parameters())
        weights = example.Weights.taken_from(model)
    left = {one.data_ptr(): one.numel() for one in model.parameters()}
    every = [weights.first_qkv, *(one for layer in weights.layers for one in layer.values())]
    taken = {one.data_ptr(): one.numel() for one in every}
    assert not left.keys() & taken.keys()
    assert sum(left.values()) + sum(taken.values()) == count


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_a_model_with_biases_is_refused(example: Any, name: str) -> None:
    model = example.build(example.TINY | {name: True}, "cpu")
    with pytest.raises(ValueError, match="support neither biases nor activations other than SiLU"):
        example.Weights.taken_from(model)


def test_rotary_embeddings_that_change_with_the_length_are_refused(example: Any) -> None:
    model = example.build(example.TINY | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "cpu")
    with pytest.raises(ValueError, match="of type dynamic"):
        example.Weights.taken_from(model)


def test_the_smoke_test_holds(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--tiny"]) == 0
    assert "logits of 8 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example.main([])
