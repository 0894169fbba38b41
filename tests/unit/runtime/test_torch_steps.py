"""`tuner.runtime.patch` with attentions and whole layers, on tiny models of transformers on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

import tuner.runtime
from tests.unit.runtime.small_models import ON_A_CPU, logits, model_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
#: Warnings of PyTorch's modules, which transformers imports.
pytestmark = pytest.mark.filterwarnings("ignore")

#: Attentions of other families have a window, or need another implementation than SDPA.
ATTENTIONS = ["Llama", "Mistral", "Qwen2", "Qwen3", "Phi3", "Gemma"]
LAYERS = ["Llama", "Mistral", "Qwen2", "Phi3"]
STATIC = {"cache_implementation": "static", "disable_compile": True}
TOKENS = 6
#: Of logits: norms are folded into bf16 weights, and PyTorch rounds the sines of a rotary embedding to bf16.
LOGITS_BAND = 0.03


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the operators ran."""
    from tuner.runtime import torch_attention, torch_layer

    found = {"attention": 0, "layer": 0}

    def count(name: str, run: Any) -> Any:
        def counted(*given: Any) -> Any:
            found[name] += 1
            return run(*given)

        return counted

    monkeypatch.setattr(torch_attention, "by_torch", count("attention", torch_attention.by_torch))
    monkeypatch.setattr(torch_layer, "by_torch", count("layer", torch_layer.by_torch))
    return found


def model(family: str, **changes: Any) -> Any:
    return model_of(family, **{"sliding_window": None, **changes})


def generated(of: Any, tokens: Any = None, **how: Any) -> tuple[Any, Any]:
    """The generated tokens, and their logits."""
    tokens = torch.arange(6).view(2, 3) + 7 if tokens is None else tokens
    asked = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, **how}
    found = of.generate(tokens, return_dict_in_generate=True, output_logits=True, **asked)
    return found.sequences, torch.stack(found.logits).float()


def is_near(ours: tuple[Any, Any], own: tuple[Any, Any]) -> bool:
    return bool(torch.equal(ours[0], own[0])) and bool((ours[1] - own[1]).norm() <= LOGITS_BAND * own[1].norm())


@pytest.mark.parametrize("family", ATTENTIONS)
def test_attentions_of_decode_steps_over_a_static_cache(family: str, calls: dict[str, int]) -> None:
    own = model(family)
    before, state = generated(own, **STATIC), {name: one.clone() for name, one in own.state_dict().items()}
    patched = tuner.runtime.patch(own, "no file is opened on a CPU", attentions=True)
    assert str(patched) == f"2 of 2 MLPs {ON_A_CPU}; 2 of 2 attentions run them in steps of any size"
    assert is_near(generated(own, **STATIC), before)
    assert calls == {"attention": 2 * (TOKENS - 1), "layer": 0}, "the first token is prefill's"
    after = own.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize("family", LAYERS)
def test_layers_of_decode_steps_over_a_static_cache(family: str, calls: dict[str, int]) -> None:
    own = model(family)
    before = generated(own, **STATIC)
    patched = tuner.runtime.patch(own, "x", layers=True)
    assert str(patched) == f"2 of 2 MLPs {ON_A_CPU}; 2 of 2 layers run them in steps of any size"
    ours = generated(own, **STATIC)
    assert is_near(ours, before)
    assert not torch.equal(ours[1], before[1]), "norms are folded"
    assert calls == {"attention": 0, "layer": 2 * (TOKENS - 1)}


@pytest.mark.parametrize("part", ["attentions", "layers"])
def test_a_cache_that_grows(part: str, calls: dict[str, int]) -> None:
    own = model("Llama")
    before = generated(own)
    tuner.runtime.patch(own, "x", **{part: True})
    assert is_near(generated(own), before)
    assert calls["layer"] == 0, "only a static cache has rows of one length"


@pytest.mark.parametrize("part", ["attentions", "layers"])
def test_contexts_with_padding_are_computed_by_transformers(part: str, calls: dict[str, int]) -> None:
    own, tokens = model("Llama"), torch.arange(6).view(2, 3) + 7
    how = {"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]), **STATIC}
    before = generated(own, tokens, **how)
    tuner.runtime.patch(own, "x", **{part: True})
    assert is_near(generated(own, tokens, **how), before)
    assert calls == {"attention": 0, "layer": 0}
    assert is_near(generated(own, tokens, **STATIC), generated(model("Llama"), tokens, **STATIC))
    assert calls["layer" if part == "layers" else "attention"], "without padding"


@pytest.mark.parametrize("part", ["attentions", "layers"])
def test_a_compiled_step_is_one_graph(part: str, calls: dict[str, int]) -> None:
    own = model("Llama")
    tuner.runtime.patch(own, "x", **{part: True})
    other = model("Llama")
    tuner.runtime.patch(other, "x", **{part: True})
    found = []
    for one, compiled in ((own, False), (other, True)):
        cache = transformers.StaticCache(config=one.config, max_cache_len=16)
        with torch.inference_mode():
            one(torch.arange(6).view(2, 3) + 7, past_key_values=cache, use_cache=True)
            step = torch.compile(one, backend="eager", fullgraph=True) if compiled else one
            for token in range(3):
                out = step(torch.tensor([[token], [token + 1]]), past_key_values=cache, use_cache=True)
        found.append(out.logits)
    assert torch.equal(*found)
    assert calls["layer" if part == "layers" else "attention"] == 2 * 2 * 3


def test_another_attention_implementation_afterwards_is_transformers_own(calls: dict[str, int]) -> None:
    """As continuous batching requires."""
    own = model("Llama")
    before = generated(own, **STATIC)
    tuner.runtime.patch(own, "x", attentions=True)
    own.set_attn_implementation("sdpa")
    assert is_near(generated(own, **STATIC), before)
    assert calls == {"attention": 0, "layer": 0}


def test_a_context_that_is_longer_than_others_has_its_own_length() -> None:
    """Lengths are those of the cache, whatever the positions: the first step comes after a prefill of 40 tokens."""
    own, tokens = model("Llama"), (torch.arange(40) % 90)[None] + 3
    before = generated(own, tokens, **STATIC)
    tuner.runtime.patch(own, "x", attentions=True, layers=True)
    assert is_near(generated(own, tokens, **STATIC), before)


@pytest.mark.parametrize(
    ("family", "changes", "part", "words"),
    [
        ("Mistral", {"sliding_window": 32}, "attentions", "2 attentions left unpatched: it has a window of 32 tokens"),
        ("Llama", {"attn_implementation": "eager"}, "attentions", "attn_implementation='eager': load it with 'sdpa'"),
        ("Llama", {"attention_bias": True}, "attentions", "its projection has a bias"),
        (
            "Gemma3Text",
            {"sliding_window": 32},
            "attentions",
            "Gemma3Attention is not one of GemmaAttention",
        ),
        ("Qwen3", {}, "layers", "2 layers left unpatched: Qwen3DecoderLayer is not one of LlamaDecoderLayer"),
        ("Llama", {"mlp_bias": True}, "layers", "2 layers left unpatched: it has biases"),
        ("Llama", {"hidden_act": "gelu_pytorch_tanh"}, "layers", "the activation of its MLP is not SiLU"),
        ("Phi3", {"partial_rotary_factor": 0.5}, "layers", "its rotary embedding turns 8 of 16 elements of a head"),
        (
            "Llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            "layers",
            "its rotary embedding is of type dynamic",
        ),
    ],
)
def test_what_no_operator_computes_is_said_and_stays(
    family: str, changes: dict[str, Any], part: str, words: str
) -> None:
    own = model(family, **changes)
    before = logits(own)
    patched = tuner.runtime.patch(own, "x", **{part: True})
    assert words in str(patched)
    assert patched.parts[0].num_patched == 0
    assert torch.equal(logits(own), before)


def test_weights_of_replaced_layers_cannot_be_loaded_again() -> None:
    own = model("Llama")
    state = {name: one.clone() for name, one in own.state_dict().items()}
    tuner.runtime.patch(own, "x", layers=True)
    with pytest.raises(RuntimeError, match="norms are folded into the weights of this layer"):
        own.load_state_dict(state)


def test_replaced_layers_stay_as_they_are() -> None:
    own = model("Llama")
    tuner.runtime.patch(own, "x", layers=True, attentions=True)
    before = generated(own, **STATIC)
    again = tuner.runtime.patch(own, "x", layers=True, attentions=True)
    assert [part.num_patched for part in again.parts] == [0, 0]
    assert "2 layers left unpatched: they run kernels already" in str(again)
    assert is_near(generated(own, **STATIC), before)


def test_a_model_that_moves_afterwards_takes_its_weights_along() -> None:
    own = model("Llama")
    tuner.runtime.patch(own, "x", layers=True)
    wide = generated(own.to(torch.float32), **STATIC)
    assert wide[1].dtype is torch.float32
    assert is_near(wide, generated(model("Llama", dtype=torch.float32), **STATIC))
