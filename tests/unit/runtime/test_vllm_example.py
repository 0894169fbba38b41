"""examples/vllm_plugin.py over a stub of vLLM's plugin interface; it runs where PyTorch is installed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT

torch = pytest.importorskip("torch")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example as a module, and the stub under vLLM's name."""
    from tuner.runtime import torch_op

    assert torch_op.by_torch
    for folder in (ROOT / "examples", ROOT / "tests" / "support" / "vllm_stub"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TUNER_PACK", "model.tunerpack")
    yield importlib.import_module("vllm_plugin")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "vllm_plugin")]:
        del sys.modules[name]


def config(**changes: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "mlp_bias": False}
    of_model = SimpleNamespace(**{**sizes, "dtype": torch.bfloat16, **changes})
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=of_model), lora_config=None)


def made(plugin: Any, asked: Any) -> tuple[Any, Any]:
    """vLLM's own model and the plugin's, of the same weights."""
    import vllm

    plugin.register()
    plugin.register()  # vLLM may call it again
    torch.manual_seed(1)
    own = vllm.ModelRegistry.load("LlamaForCausalLM").__mro__[1](vllm_config=asked)
    torch.manual_seed(1)
    return own, vllm.ModelRegistry.load("LlamaForCausalLM")(vllm_config=asked, prefix="model")


def test_the_plugin_names_its_class_to_vllm_and_does_nothing_without_a_pack(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm

    assert inspect.signature(plugin.register).parameters == {}
    monkeypatch.delenv("TUNER_PACK")
    before = dict(vllm.ModelRegistry.models)
    plugin.register()
    assert vllm.ModelRegistry.models == before
    monkeypatch.setenv("TUNER_PACK", "model.tunerpack")
    plugin.register()
    assert vllm.ModelRegistry.models["LlamaForCausalLM"] == "vllm_plugin:PackedLlama"
    assert "vllm.model_executor.models.llama" not in sys.modules, "vLLM's models are imported when one is made"
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = plugin.Nothing


def test_the_model_is_vllms_with_its_parameters_and_numbers_through_the_operator(plugin: Any) -> None:
    own, packed = made(plugin, config())
    assert isinstance(packed, type(own))
    assert packed.state_dict().keys() == own.state_dict().keys()
    x = torch.randn(5, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
        calls: list[tuple[int, ...]] = []
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            packed(x)
        calls = [event.count for event in profile.key_averages() if event.key == "tuner::ffn"]
    assert calls == [2]


def test_weights_that_are_loaded_later_are_bound_where_they_lie_then(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[int, int]] = []
    monkeypatch.setattr(plugin, "_number_of", lambda w1, w2: bound.append((w1.data_ptr(), w2.data_ptr())) or 0)
    own, packed = made(plugin, config())
    assert len(bound) == 2
    weights = {name: weight + 1 for name, weight in own.state_dict().items()}
    assert packed.load_weights(weights.items()) == weights.keys()
    mlps = [layer.mlp for layer in packed.model.layers[:-1]]
    assert bound[2:] == [(mlp.gate_up_proj.weight.data_ptr(), mlp.down_proj.weight.data_ptr()) for mlp in mlps]
    packed.load_weights([])
    assert len(bound) == 4
    own.load_state_dict(weights)
    x = torch.randn(3, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))


@pytest.mark.parametrize("is_summed", [True, False])
def test_on_several_ranks_the_outputs_are_summed_where_the_layer_would_sum_them(plugin: Any, is_summed: bool) -> None:
    import vllm.distributed

    vllm.distributed.WORLD_SIZE = 2
    own = made(plugin, config(num_hidden_layers=1))[0].model.layers[0].mlp
    own.down_proj.reduce_results = is_summed
    x, other = torch.randn(3, 32).to(torch.bfloat16), torch.randn(3, 32).to(torch.bfloat16)
    vllm.distributed.others += [other, other]
    with torch.inference_mode():
        assert torch.equal(plugin.packed_mlp(own)(x), own(x))
    assert len(vllm.distributed.others) == (0 if is_summed else 2)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mlp_bias": True}, "it has biases"),
        ({"dtype": torch.float32}, "of another type"),
        ({"lora": True}, "adapters change each product alone"),
    ],
)
def test_what_the_operator_cannot_do_stays_vllms_and_is_said(
    plugin: Any, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], words: str
) -> None:
    given = config(**{name: value for name, value in asked.items() if name != "lora"})
    given.lora_config = object() if "lora" in asked else None
    own, packed = made(plugin, given)
    assert words in capsys.readouterr().out
    assert type(packed.model.layers[0].mlp) is type(own.model.layers[0].mlp)
