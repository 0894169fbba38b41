"""`tuner.vllm` over a stub of vLLM's plugin interface; requires PyTorch."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tuner.vllm
from tests.support.repository import ROOT
from tuner.errors import InvalidInput

torch = pytest.importorskip("torch")


@pytest.fixture
def operator() -> Any:
    """The operator's module, of which there is one per process."""
    found = importlib.import_module("tuner.vllm.operator")
    found.calls.clear()
    return found


@pytest.fixture(autouse=True)
def registered(
    operator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """The plugin in the stub that is named vLLM, and a pack."""
    assert operator
    vllms_own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "vllm"}
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support" / "vllm_stub"))
    (tmp_path / "model.tunerpack").write_bytes(b"a pack")
    monkeypatch.setenv("TUNER_PACK", str(tmp_path / "model.tunerpack"))
    monkeypatch.setattr(operator, "_gated", {})
    caplog.set_level(logging.INFO)
    assert inspect.signature(tuner.vllm.register).parameters == {}
    tuner.vllm.register()
    tuner.vllm.register()  # vLLM may call it again
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    for name in (
        "tuner.vllm.loader",
        "tuner.vllm.mlp",
        "tuner.vllm.decode",
        "tuner.vllm.runs",
    ):  # they have imported classes of the stub
        sys.modules.pop(name, None)
    sys.modules.update(vllms_own)


class OfRows:
    """Kernels for some numbers of rows, which record the requested ones."""

    def __init__(self, rows: range) -> None:
        self._rows, self.asked = rows, list[int]()

    def is_kernel(self, rows: int) -> bool:
        return rows in self._rows

    def __call__(self, x: Any, w1: Any, w2: Any, activation: str) -> Any:
        self.asked.append(len(x))
        return torch.zeros_like(x)


def config(**changes: Any) -> Any:
    from vllm.model_executor.models import llama

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "mlp_bias": False, "gelu": ""}
    of_model = SimpleNamespace(**{**sizes, "dtype": torch.bfloat16, "mlp": llama.LlamaMLP, **changes})
    model_config = SimpleNamespace(hf_config=of_model, architecture=llama.LlamaForCausalLM, enable_sleep_mode=False)
    parallel = SimpleNamespace(use_ubatching=False)
    return SimpleNamespace(
        model_config=model_config,
        lora_config=None,
        additional_config={},
        speculative_config=None,
        parallel_config=parallel,
    )


def loaded(asked: Any, by: str, /, **extra: Any) -> Any:
    """A model with constant weights, in load format `by`."""
    from vllm.model_executor.model_loader import LoadConfig, get_model_loader

    torch.manual_seed(1)
    loader = get_model_loader(LoadConfig(by, extra))
    return loader.load_model(asked, asked.model_config)


def test_the_model_is_vllms_with_its_parameters_and_numbers_through_the_operator(operator: Any) -> None:
    own, packed = loaded(config(), "auto"), loaded(config(), "tuner")
    assert type(packed) is type(own)
    assert packed.state_dict().keys() == own.state_dict().keys()
    x = torch.randn(5, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
        assert torch.equal(packed(x.view(1, 5, 32)), own(x.view(1, 5, 32)))
    assert operator.calls == {"unbound": 4}, "two MLPs in each of two calls, and no kernel on a CPU"


def test_without_a_pack_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("TUNER_PACK")
    asked = config()
    assert type(loaded(asked, "tuner").model.layers[0].mlp).__name__ == "LlamaMLP"
    assert (asked.additional_config, "TUNER_PACK is not set" in caplog.text) == ({}, True)


def test_the_compile_cache_knows_the_packs_bytes(tmp_path: Path) -> None:
    asked, other = config(), config()
    loaded(asked, "tuner")
    (tmp_path / "model.tunerpack").write_bytes(b"another")
    loaded(other, "tuner")
    assert asked.additional_config["tuner_pack"] != other.additional_config["tuner_pack"]


def test_weights_come_by_the_inner_format_and_its_own_format_is_refused() -> None:
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
    with pytest.raises(InvalidInput, match="is 'tuner', which is this plugin's own"):
        loaded(config(), "tuner", load_format="tuner")
    with pytest.raises(ValueError, match="Load format `nothing` is not supported"):
        loaded(config(), "tuner", load_format="nothing")


def test_the_kernel_is_found_by_the_weights_and_no_graph_names_it(operator: Any) -> None:
    w1, w2 = torch.randn(96, 32).to(torch.bfloat16), torch.randn(32, 48).to(torch.bfloat16)
    key = operator.key_of(w1, w2)
    w1.normal_()
    assert operator.key_of(w1, w2) == key, "weights that are loaded again in place keep their kernels"
    assert operator.key_of(w1.T.contiguous().T, w2) != key
    assert operator.key_of(w1[:95], w2) != key, "the same address, and another shape"
    assert "number" not in str(torch.ops.tuner_vllm.mlp.default._schema)


def test_what_computed_an_mlp_is_counted(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w1, w2 = torch.randn(96, 32).to(torch.bfloat16), torch.randn(32, 48).to(torch.bfloat16)
    kernels = OfRows(range(1, 3))
    monkeypatch.setitem(operator._bound, operator.key_of(w1, w2), [kernels])
    with torch.inference_mode():
        for rows in (1, 2, 5):
            torch.ops.tuner_vllm.mlp(torch.randn(rows, 32).to(torch.bfloat16), w1, w2, "silu")
        torch.ops.tuner_vllm.mlp(torch.randn(1, 32).to(torch.bfloat16), w1.clone(), w2, "silu")
    assert operator.calls == {"kernel": 2, "library": 1, "unbound": 1}
    assert kernels.asked == [1, 2]


def test_of_several_kernels_the_first_that_computes_so_many_rows_does(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w1, w2 = torch.randn(96, 32).to(torch.bfloat16), torch.randn(32, 48).to(torch.bfloat16)
    alone, run = OfRows(range(1, 3)), OfRows(range(1, 17))
    monkeypatch.setitem(operator._bound, operator.key_of(w1, w2), [alone, run])
    with torch.inference_mode():
        for rows in (2, 16, 17):
            torch.ops.tuner_vllm.mlp(torch.randn(rows, 32).to(torch.bfloat16), w1, w2, "silu")
    assert (alone.asked, run.asked) == ([2], [16])
    assert operator.calls == {"kernel": 2, "library": 1}


class RecordedSilu:
    """An activation that is called, as in the stub."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, pairs: Any) -> Any:
        return self._of("called", pairs)

    def _of(self, way: str, pairs: Any) -> Any:
        self.taken.append((way, tuple(pairs.shape)))
        gate, up = pairs.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


class KernelSilu(RecordedSilu):
    """An activation of vLLM 0.26 with a kernel, which it calls in both cases."""

    def dispatch_forward(self, compile_native: bool) -> Any:
        return self.by_kernel

    def by_kernel(self, pairs: Any) -> Any:
        return self._of("kernel", pairs)


class NativeSilu:
    """An activation of vLLM 0.26 without: it chooses between operations one by one, and compiled ones."""

    def dispatch_forward(self, compile_native: bool) -> Any:
        return torch.compile(self.by_operations, dynamic=True) if compile_native else self.by_operations

    @staticmethod
    def by_operations(pairs: Any) -> Any:
        return torch.nn.functional.silu(pairs[..., : pairs.shape[-1] // 2]) * pairs[..., pairs.shape[-1] // 2 :]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_rows_of_the_library_have_an_activation_compiled_for_their_columns(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph for any number of columns loads elements one by one. The checks of torch.compile, 70 µs of the host's
    time in each MLP of a step without a graph, are only made when it compiles, and for a single row."""
    shapes: list[list[str]] = []
    checked: list[int] = []

    def backend(graph: Any, inputs: list[Any], **_: Any) -> Any:
        held = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        shapes.append([type(size).__name__ for one in held if torch.is_tensor(one) for size in one.shape])
        # As PyTorch's own compiler does, it returns a tuple.
        return lambda *given: tuple(graph.forward(*given))

    marked = torch._dynamo.maybe_mark_dynamic
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", backend)
    monkeypatch.setattr(
        torch._dynamo, "maybe_mark_dynamic", lambda one, at: (checked.append(len(one)), marked(one, at))
    )
    torch._dynamo.reset()
    w1, w2 = (torch.randn(*size).to(torch.bfloat16) for size in ((96, 32), (32, 48)))
    with torch.inference_mode():
        operator.use_activation("silu", NativeSilu())
        for rows in (5, 7, 1, 300, 5, 2):
            x = torch.randn(rows, 32).to(torch.bfloat16)
            gate, up = (x @ w1.T).chunk(2, dim=-1)
            wanted = (torch.nn.functional.silu(gate) * up) @ w2.T
            assert torch.equal(torch.ops.tuner_vllm.mlp(x, w1, w2, "silu"), wanted)
    assert shapes == [["SymInt", "int"], ["int", "int"]], "one for any rows, one for a single row"
    assert checked == [5, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_an_activation_of_other_columns_layouts_or_sizes_is_not_what_was_compiled_for_the_usual_ones(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    with torch.inference_mode():
        run = operator.compiled_for_any_rows(NativeSilu.by_operations)
        wide = torch.randn(6, 64)
        monkeypatch.setattr(operator, "_MOST_ELEMENTS", 6 * 64 + 1)
        for pairs in (wide, wide[:, :32], wide[:, 32:].contiguous(), wide[::2], wide.double(), torch.randn(9, 64)):
            assert torch.allclose(run(pairs), NativeSilu.by_operations(pairs), rtol=1e-6)


@pytest.mark.parametrize(("kind", "way"), [(RecordedSilu, "called"), (KernelSilu, "kernel")])
def test_rows_of_the_library_take_what_vllm_has_for_the_activation(
    operator: Any, kind: type[RecordedSilu], way: str
) -> None:
    x, w1, w2 = (torch.randn(*size).to(torch.bfloat16) for size in ((5, 32), (96, 32), (32, 48)))
    layer = kind()
    with torch.inference_mode():
        wanted = torch.ops.tuner_vllm.mlp(x, w1, w2, "silu")
        operator.use_activation("silu", layer)
        assert torch.equal(torch.ops.tuner_vllm.mlp(x, w1, w2, "silu"), wanted)
    assert layer.taken == [(way, (5, 96))]


def test_a_loaded_model_gives_its_activation_to_the_operator(operator: Any) -> None:
    loaded(config(gelu="tanh"), "tuner")
    loaded(config(), "tuner")
    assert sorted(operator._gated) == ["gelu", "silu"]


def test_a_pack_that_is_not_there_is_refused_by_the_variables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_PACK", "/nowhere/model.tunerpack")
    with pytest.raises(InvalidInput, match=r"TUNER_PACK: '/nowhere/model.tunerpack' is not a file; use a pack"):
        loaded(config(), "tuner")


def test_weights_that_are_offloaded_stay_vllms_where_there_is_a_card(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    packed = loaded(config(), "tuner")
    assert "2 keep vLLM's implementation: its weights are not on the card" in caplog.text
    assert type(packed.model.layers[0].mlp).__name__ == "LlamaMLP"


def test_a_model_without_mlps_of_three_parts_is_said(caplog: pytest.LogCaptureFixture) -> None:
    loaded(config(num_hidden_layers=0), "tuner")
    assert "the model has no MLP with a gate_up_proj, an act_fn and a down_proj" in caplog.text


def test_another_interface_of_vllm_is_said_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    del sys.modules["tuner.vllm.loader"]
    sys.modules["vllm.model_executor.model_loader.base_loader"] = None  # type: ignore[assignment]
    tuner.vllm.register()
    assert "the load format `tuner` is not available, since this vLLM has a different interface" in caplog.text


def test_what_the_inner_loader_alone_has_is_there_to_load_weights_again() -> None:
    from vllm.model_executor.model_loader import LoadConfig, get_model_loader

    loader = get_model_loader(LoadConfig("tuner", {"load_format": "auto"}))
    assert list(loader.get_all_weights(None, None)) == []
    assert not hasattr(loader, "nothing_of_the_kind")


def test_weights_that_are_loaded_into_a_packed_model_are_its_own() -> None:
    from vllm.model_executor.model_loader import LoadConfig, get_model_loader

    packed = loaded(config(), "tuner")
    given = {name: torch.full_like(weight, 0.5) for name, weight in packed.named_parameters()}
    again = get_model_loader(LoadConfig("tuner", {"weights": given}))
    again.load_weights(packed, None)
    assert again.mlps == []
    assert bool((packed.model.layers[0].mlp.gate_up_proj.weight == 0.5).all())


@pytest.mark.parametrize("is_summed", [True, False])
def test_on_several_ranks_the_outputs_are_summed_where_the_layer_would_sum_them(is_summed: bool) -> None:
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
        ({"mlp_bias": True}, "2 keep vLLM's implementation: it has biases"),
        ({"dtype": torch.float32}, "its weights are float32, but kernels support float16 and bfloat16"),
        ({"quantised": True}, "its weights are quantised, by Fp8LinearMethod"),
        ({"gelu": "none"}, "GeluAndMul(approximate='none') is neither SiLU nor the tanh form of GELU"),
        ({"mlp": "GatedMLP"}, "GatedMLP is not one of Gemma2MLP, Gemma3MLP, GemmaMLP, LlamaMLP"),
        ({"lora": True}, "adapters (LoRA) change each product separately"),
        ({"sleep": True}, "sleep mode may discard"),
        ({"ubatching": True}, "two micro-batches at once (DBO)"),
        ({"invariant": True}, "VLLM_BATCH_INVARIANT requires bits"),
        ({"additional": ()}, "additional_config is not a dict"),
        ({"load_format": "whole"}, "load format 'whole' builds the model itself"),
    ],
)
def test_what_the_operator_cannot_do_stays_vllms_and_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], words: str
) -> None:
    from vllm import envs
    from vllm.model_executor.models import llama

    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", "invariant" in asked)
    of_model = {name: value for name, value in asked.items() if name in ("mlp_bias", "dtype", "gelu")}
    given = config(**of_model, mlp=getattr(llama, asked.get("mlp", "LlamaMLP")))
    given.lora_config = object() if "lora" in asked else None
    given.model_config.enable_sleep_mode = "sleep" in asked
    given.parallel_config.use_ubatching = "ubatching" in asked
    given.additional_config = asked.get("additional", {})
    if "quantised" in asked:  # a loaded weight is a plain matrix until its method quantises it
        monkeypatch.setattr(llama._Linear, "quant_method", type("Fp8LinearMethod", (), {})(), raising=False)
    own = loaded(given, "auto")
    packed = loaded(given, "tuner", load_format=asked.get("load_format", "auto"))
    assert words in caplog.text
    assert type(packed.model.layers[0].mlp) is type(own.model.layers[0].mlp)
    x = torch.randn(3, 32).to(given.model_config.hf_config.dtype)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))


def test_the_tanh_form_of_gelu_is_the_operators() -> None:
    own, packed = (loaded(config(gelu="tanh"), by) for by in ("auto", "tuner"))
    x = torch.randn(3, 32).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(x), own(x))
    assert type(packed.model.layers[0].mlp).__name__ == "PackedMlp"


def test_a_damaged_pack_is_a_reason_of_each_mlp_on_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both readers of the pack refuse it, and vLLM goes on serving."""
    mlp = importlib.import_module("tuner.vllm.mlp")

    def opened(path: Path) -> Any:
        raise mlp.UNFIT[1](-1, "the pack is cut off")

    monkeypatch.setattr(mlp, "opened", opened)
    (tmp_path / "cut.tunerpack").write_bytes(b"half of a pack")
    weight = SimpleNamespace(data=SimpleNamespace(is_cuda=True, shape=(96, 32), dtype=torch.bfloat16))
    monkeypatch.setattr(mlp, "Weights", lambda *given, **how: given)
    found = mlp.Found(name="model.mlp", reason="", weights=(weight, weight))
    reason = mlp._bind(found, "silu", tmp_path / "cut.tunerpack")
    assert reason.startswith("TUNER_PACK: the pack is cut off; ")
