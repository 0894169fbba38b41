"""examples/vllm_plugin.py over a stub of vLLM's plugin interface; it runs where PyTorch is installed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT

torch = pytest.importorskip("torch")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The example as a module, registered in the stub that stands under vLLM's name."""
    from tuner.runtime import torch_op

    assert torch_op.by_torch
    for folder in (ROOT / "examples", ROOT / "tests" / "support" / "vllm_stub"):
        monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "model.tunerpack").write_bytes(b"a pack")
    monkeypatch.setenv("TUNER_PACK", str(tmp_path / "model.tunerpack"))
    module = importlib.import_module("vllm_plugin")
    assert inspect.signature(module.register).parameters == {}
    module.register()
    module.register()  # vLLM may call it again
    yield module
    for library in module._kept:
        library._destroy()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "vllm_plugin")]:
        del sys.modules[name]


def config(**changes: Any) -> Any:
    from vllm.model_executor.models import llama

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "mlp_bias": False, "gelu": ""}
    of_model = SimpleNamespace(**{**sizes, "dtype": torch.bfloat16, "mlp": llama.LlamaMLP, **changes})
    model_config = SimpleNamespace(hf_config=of_model, architecture=llama.LlamaForCausalLM, enable_sleep_mode=False)
    return SimpleNamespace(model_config=model_config, lora_config=None, additional_config={})


def loaded(asked: Any, by: str, /, **extra: Any) -> Any:
    """A model by a load format, of weights that are always the same."""
    from vllm.model_executor.model_loader import LoadConfig, get_model_loader

    torch.manual_seed(1)
    loader = get_model_loader(LoadConfig(by, extra))
    return loader.load_model(asked, asked.model_config)


def test_the_model_is_vllms_with_its_parameters_and_numbers_through_the_operator(plugin: Any) -> None:
    own, packed = loaded(config(), "auto"), loaded(config(), "tuner")
    assert type(packed) is type(own)
    assert packed.state_dict().keys() == own.state_dict().keys()
    x = torch.randn(5, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
        assert torch.equal(packed(x.view(1, 5, 32)), own(x.view(1, 5, 32)))
    assert plugin.launches == {"without": 4}, "two MLPs in each of two calls, and no kernel on a CPU"


def test_without_a_pack_nothing_is_replaced(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_PACK")
    asked = config()
    assert type(loaded(asked, "tuner").model.layers[0].mlp).__name__ == "LlamaMLP"
    assert asked.additional_config == {}


def test_the_compile_cache_knows_the_packs_bytes(plugin: Any, tmp_path: Path) -> None:
    asked, other = config(), config()
    loaded(asked, "tuner")
    plugin._digest.cache_clear()
    (tmp_path / "model.tunerpack").write_bytes(b"another")
    loaded(other, "tuner")
    assert asked.additional_config["tuner_pack"] != other.additional_config["tuner_pack"]


def test_weights_come_by_the_inner_format_and_its_own_format_is_refused(plugin: Any) -> None:
    sizes = {"gate_up_proj": (96, 32), "down_proj": (32, 48)}
    given = {
        f"model.layers.{i}.mlp.{part}.weight": torch.full(size, 0.25 + i).to(torch.bfloat16)
        for i in range(2)
        for part, size in sizes.items()
    }
    own, packed = loaded(config(), "auto", weights=given), loaded(config(), "tuner", load_format="auto", weights=given)
    x = torch.randn(3, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
    with pytest.raises(ValueError, match="'tuner' is this plugin's own"):
        loaded(config(), "tuner", load_format="tuner")
    with pytest.raises(ValueError, match="Load format `nothing` is not supported"):
        loaded(config(), "tuner", load_format="nothing")


def test_the_kernel_is_found_by_the_weights_and_no_graph_names_it(plugin: Any) -> None:
    w1, w2 = torch.randn(96, 32).to(torch.bfloat16), torch.randn(32, 48).to(torch.bfloat16)
    plugin._numbers[plugin._key_of(w1, w2)] = 0
    assert plugin._key_of(w1, w2) in plugin._numbers
    assert plugin._key_of(w1.T.contiguous().T, w2) not in plugin._numbers
    assert plugin._key_of(w1[:95], w2) not in plugin._numbers, "the same address, and another shape"
    assert "number" not in str(torch.ops.tuner_vllm.mlp.default._schema)


@pytest.mark.parametrize("is_summed", [True, False])
def test_on_several_ranks_the_outputs_are_summed_where_the_layer_would_sum_them(plugin: Any, is_summed: bool) -> None:
    import vllm.distributed

    vllm.distributed.WORLD_SIZE = 2
    own, packed = (loaded(config(num_hidden_layers=1), by).model.layers[0].mlp for by in ("auto", "tuner"))
    x, other = torch.randn(3, 32).to(torch.bfloat16), torch.randn(3, 32).to(torch.bfloat16)
    vllm.distributed.others += [other, other]
    if not is_summed:
        own.down_proj.reduce_results, packed.is_summed = False, False
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
    assert len(vllm.distributed.others) == (0 if is_summed else 2)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mlp_bias": True}, "2 stay vLLM's own: it has biases"),
        ({"dtype": torch.float32}, "of another type"),
        ({"gelu": "none"}, "GeluAndMul(approximate='none') is neither SiLU nor the tanh form of GELU"),
        ({"mlp": "GatedMLP"}, "GatedMLP is none of Gemma2MLP, Gemma3MLP, GemmaMLP, LlamaMLP"),
        ({"lora": True}, "adapters change each product alone"),
        ({"sleep": True}, "sleep mode may discard"),
        ({"load_format": "whole"}, "load format 'whole' makes the model by itself"),
    ],
)
def test_what_the_operator_cannot_do_stays_vllms_and_is_said(
    plugin: Any, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], words: str
) -> None:
    from vllm.model_executor.models import llama

    of_model = {name: value for name, value in asked.items() if name in ("mlp_bias", "dtype", "gelu")}
    given = config(**of_model, mlp=getattr(llama, asked.get("mlp", "LlamaMLP")))
    given.lora_config = object() if "lora" in asked else None
    given.model_config.enable_sleep_mode = "sleep" in asked
    own = loaded(given, "auto")
    packed = loaded(given, "tuner", load_format=asked.get("load_format", "auto"))
    assert words in capsys.readouterr().out
    assert type(packed.model.layers[0].mlp) is type(own.model.layers[0].mlp)
    x = torch.randn(3, 32).to(given.model_config.hf_config.dtype)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))


def test_the_tanh_form_of_gelu_is_the_operators(plugin: Any) -> None:
    own, packed = (loaded(config(gelu="tanh"), by) for by in ("auto", "tuner"))
    x = torch.randn(3, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
    assert type(packed.model.layers[0].mlp).__name__ == "PackedMlp"
