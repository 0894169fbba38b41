"""`tuner.runtime.patch` on tiny models of transformers on the CPU; requires PyTorch and transformers."""

from __future__ import annotations

from typing import Any

import pytest

import tuner.runtime
from tests.unit.runtime.small_models import ON_A_CPU, logits, model_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
#: Warnings of PyTorch's modules, which transformers imports.
pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3", "Phi3", "Gemma", "Gemma2", "Gemma3Text"]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_states_are_those_of_before_in_every_family(family: str) -> None:
    model = model_of(family)
    before, state = logits(model), {name: one.clone() for name, one in model.state_dict().items()}
    count = sum(one.numel() for one in model.parameters())
    patched = tuner.runtime.patch(model, "no file is opened on a CPU")
    assert (patched.num_patched, patched.num_mlps, patched.reasons) == (2, 2, {})
    assert str(patched) == f"2 of 2 MLPs {ON_A_CPU}"
    assert torch.equal(logits(model), before)
    after = model.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], state[name]) for name in state)
    assert sum(one.numel() for one in model.parameters()) == count
    again = tuner.runtime.patch(model, "x")
    assert (again.num_patched, again.num_mlps) == (0, 0), "what runs it already is left alone"


def test_the_operator_computes_and_weights_that_are_loaded_again_are_its_own() -> None:
    model = model_of("Llama")
    before = logits(model)
    tuner.runtime.patch(model, "x")
    state = {name: one.clone() for name, one in model.state_dict().items()}
    state["model.layers.1.mlp.up_proj.weight"].neg_()
    model.load_state_dict(state)
    moved = logits(model)
    assert not torch.equal(moved, before)
    other = model_of("Llama")
    other.load_state_dict(state)
    assert torch.equal(moved, logits(other))


def test_a_model_that_moves_afterwards_takes_its_weights_along() -> None:
    model = model_of("Llama")
    tuner.runtime.patch(model, "x")
    own = model_of("Llama").to(torch.float64)
    assert torch.equal(logits(model.to(torch.float64)), logits(own))
    mlp = model.model.layers[0].mlp
    with torch.no_grad():
        mlp.gate_proj.weight.neg_()
        own.model.layers[0].mlp.gate_proj.weight.neg_()
    assert torch.equal(logits(model), logits(own)), "its halves are the merged weights again"


def test_generate_goes_on_as_before() -> None:
    model, tokens = model_of("Llama"), torch.arange(6).view(2, 3) + 7
    how = {"max_new_tokens": 5, "do_sample": False}
    before = model.generate(tokens, **how)
    tuner.runtime.patch(model, "x")
    assert torch.equal(model.generate(tokens, **how), before)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("Llama", {"mlp_bias": True}, "it has biases"),
        ("Llama", {"hidden_act": "gelu"}, "is neither SiLU nor the tanh form of GELU"),
        ("Llama", {"dtype": "float32"}, "its weights are of float32, but kernels have fp16 or bf16"),
        ("Granite", {}, "GraniteMLP is not one of Gemma2MLP"),
    ],
)
def test_what_the_operator_cannot_do_stays_as_it_was_and_is_said(
    family: str, changes: dict[str, Any], words: str
) -> None:
    dtype = getattr(torch, changes.pop("dtype", "bfloat16"))
    model = model_of(family, dtype, **changes)
    before = logits(model)
    patched = tuner.runtime.patch(model, "x")
    assert patched.num_patched == 0
    assert f"0 of 2 MLPs {ON_A_CPU}; 2 left unpatched: {next(iter(patched.reasons))}" == str(patched)
    assert words in str(patched)
    assert torch.equal(logits(model), before)


def test_a_product_of_another_class_is_named() -> None:
    model = model_of("Llama")

    class Adapted(torch.nn.Linear):
        pass

    mlp = model.model.layers[0].mlp
    adapted = Adapted(64, 96, bias=False).to(torch.bfloat16)
    adapted.weight = mlp.up_proj.weight
    mlp.up_proj = adapted
    patched = tuner.runtime.patch(model, "x")
    assert patched.num_patched == 1
    assert "one of its products is a Adapted: quantised, or with an adapter" in str(patched)
