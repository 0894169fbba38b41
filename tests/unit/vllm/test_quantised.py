"""Quantised MLPs inside vLLM: the weights left by its loader are those that the converter reads from the checkpoint."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.runtime.test_checkpoints import FOLDER, Held, read
from tests.unit.runtime.test_feed_forward import FP8, HIDDEN, K, kernel, widened
from tuner.core.problem.dtype import Dtype
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import Scheme
from tuner.runtime.checkpoints import feed_forward

torch = pytest.importorskip("torch")
NAME = "model.layers.0.mlp"


@pytest.fixture
def quantised(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.import_module("tuner.vllm.quantised.mlps")
    monkeypatch.setattr("tuner.vllm.operator.compiled_for_any_rows", lambda run: run)
    return found


def tensor(given: Any) -> Any:
    """A PyTorch tensor from an array of any type."""
    if isinstance(given, Held):
        return torch.from_numpy(np.array(given.array)).view(getattr(torch, given.dtype))
    return torch.from_numpy(np.array(given))


class SiluAndMul:
    """Doubles its input. Named like vLLM's, which compiles another form of it for calls outside of its graphs."""

    def dispatch_forward(self, compile_native: bool) -> Any:
        return self.for_any_columns if compile_native else self.in_graphs

    @staticmethod
    def in_graphs(pairs: Any) -> Any:
        return 2 * pairs

    @staticmethod
    def for_any_columns(pairs: Any) -> Any:
        raise AssertionError("this loads elements one by one")

    def __call__(self, pairs: Any) -> Any:
        return self.for_any_columns(pairs)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A vLLM layer, with the tensors that its method registers. Adds one to its input."""

    def __init__(self, parameters: dict[str, Any], widths: list[int]) -> None:
        super().__init__()
        for name, held in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(held, requires_grad=False))
        self.output_partition_sizes, self.tp_size = widths, 1

    def forward(self, x: Any) -> Any:
        return x + 1, None


class LlamaMLP(torch.nn.Module):  # type: ignore[misc]
    """Named like vLLM's."""

    __module__ = "vllm.model_executor.models.llama"

    def __init__(self, up: Layer, down: Layer) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act_fn = up, down, SiluAndMul()


def merged(tensors: dict[str, Any], what: str, dim: int) -> Any:
    return torch.cat([tensor(tensors[f"{part}.{what}"]) for part in ("gate", "up")], dim)


def of_gptq() -> tuple[LlamaMLP, dict[str, Any], dict[str, Any]]:
    """GPTQ tensors merged as by vLLM: rows are columns of qweight."""
    tensors, config = widened("gptq")
    order = {"g_idx": torch.arange(K, dtype=torch.int32) // 128}
    up = {what: merged(tensors, what, 1) for what in ("qweight", "scales", "qzeros")} | order
    down = {what: tensor(tensors[f"down.{what}"]) for what in ("qweight", "scales", "qzeros")}
    down["g_idx"] = torch.empty(0, dtype=torch.int32)
    return LlamaMLP(Layer(up, [HIDDEN, HIDDEN]), Layer(down, [K])), tensors, config


def of_awq() -> tuple[LlamaMLP, dict[str, Any], dict[str, Any]]:
    """AWQ tensors merged as by vLLM: words hold eight rows of a column."""
    tensors, config = widened("awq")
    up = {what: merged(tensors, what, 1) for what in ("qweight", "scales", "qzeros")}
    down = {what: tensor(tensors[f"down.{what}"]) for what in ("qweight", "scales", "qzeros")}
    return LlamaMLP(Layer(up, [HIDDEN, HIDDEN]), Layer(down, [K])), tensors, config


def test_merged_layers_are_the_checkpoints_products_above_each_other(quantised: Any) -> None:
    mlp, tensors, config = of_gptq()
    wanted = kernel(Scheme.INT4, Dtype.FP16)
    found = quantised.laid_out(mlp, NAME, config, wanted)
    expected = feed_forward(tensors, config, wanted, up=("gate", "up"), down="down")
    assert {name: one.numpy().tobytes() for name, one in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


def test_factors_of_merged_tensors_are_those_of_their_rows(quantised: Any) -> None:
    tensors, _ = widened("compressed_fp8")
    sizes = {"gate": 0.5, "up": 0.25, "down": 0.125}
    tensors |= {f"{part}.weight_scale": np.float32([size]) for part, size in sizes.items()}
    tensors |= {f"{part}.input_scale": np.float32([size]) for part, size in sizes.items()}
    scales = {what: merged(tensors, what, 0) for what in ("weight_scale", "input_scale")}
    up = Layer({"weight": merged(tensors, "weight", 0), **scales}, [HIDDEN, HIDDEN])
    down = Layer({what: tensor(tensors[f"down.{what}"]) for what in ("weight", *scales)}, [K])
    wanted = kernel(Scheme.TENSOR)
    found = quantised.laid_out(LlamaMLP(up, down), NAME, FP8, wanted)
    expected = feed_forward(tensors, FP8, wanted, up=("gate", "up"), down="down")
    assert {name: one.numpy().tobytes() for name, one in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


def weights_only() -> tuple[LlamaMLP, dict[str, Any], dict[str, Any]]:
    """fp8 weights with a scale per row, and 16-bit activations."""
    tensors, config = widened("compressed_fp8")
    config = {"quant_method": "compressed-tensors", "config_groups": config["config_groups"]}
    for group in config["config_groups"].values():
        group["input_activations"] = None
    up = Layer({what: merged(tensors, what, 0) for what in ("weight", "weight_scale")}, [HIDDEN, HIDDEN])
    down = Layer({what: tensor(tensors[f"down.{what}"]) for what in ("weight", "weight_scale")}, [K])
    return LlamaMLP(up, down), tensors, config


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (of_gptq, kernel(Scheme.INT4, Dtype.FP16)),
        (of_awq, kernel(Scheme.INT4_ZP, Dtype.FP16)),
        (weights_only, kernel(Scheme.W8A16)),
    ],
)
def test_the_card_lays_weights_out_as_the_host_does(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, made: Any, wanted: dict[str, Any]
) -> None:
    mlp, tensors, config = made()
    expected = feed_forward(tensors, config, wanted, up=("gate", "up"), down="down")
    monkeypatch.delattr(quantised, "feed_forward")  # the host's
    found = quantised.laid_out(mlp, NAME, config, wanted)
    assert {name: (list(one.shape), one.numpy().tobytes()) for name, one in found.items()} == {
        name: (list(array.shape), array.tobytes()) for name, array in expected.items()
    }


@pytest.mark.parametrize(
    ("made", "wanted", "what", "value"),
    [
        (of_gptq, kernel(Scheme.INT4, Dtype.FP16), "qzeros", 0x66666666),
        (of_gptq, kernel(Scheme.INT4, Dtype.FP16), "g_idx", 0),
        (of_gptq, kernel(Scheme.INT4, Dtype.FP16), "scales", 0.0),
        (of_awq, kernel(Scheme.INT4_ZP, Dtype.FP16), "scales", 0.0),
        (weights_only, kernel(Scheme.W8A16), "weight_scale", float("inf")),
    ],
)
def test_the_host_says_what_is_wrong_with_unusual_weights(
    quantised: Any, made: Any, wanted: dict[str, Any], what: str, value: float
) -> None:
    mlp, _, config = made()
    getattr(mlp.gate_up_proj, what).data.fill_(value)
    with pytest.raises(InvalidInput, match=what):
        quantised.laid_out(mlp, NAME, config, wanted)


def test_an_mlp_that_may_compute_more_stays_vllms_own(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shared expert's output is multiplied by its gate."""

    class Qwen2MoeMLP(LlamaMLP):
        pass

    program = SimpleNamespace(artifact=SimpleNamespace(tensors=kernel(Scheme.INT4, Dtype.FP16)))
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program})
    mlp, _, config = of_gptq()
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=config), dtype=torch.float16)
    caplog.set_level("INFO")
    assert quantised.read(torch.nn.ModuleList([Qwen2MoeMLP(mlp.gate_up_proj, mlp.down_proj)]), about, None) == []
    assert "1 quantised MLPs keep vLLM's implementation: Qwen2MoeMLP is not one of" in caplog.text


def test_a_packed_layers_shape_is_that_of_all_its_rows(quantised: Any) -> None:
    tensors, _ = read(FOLDER / "compressed_int4_g128.safetensors")
    held = {what: tensor(tensors[f"mlp.{what}"]) for what in ("weight_packed", "weight_scale", "weight_shape")}
    held["weight_packed"] = torch.cat([held["weight_packed"]] * 2)
    found = quantised.tensors_of(Layer(held, [32, 32]), "m")
    assert found["m.weight_shape"].tolist() == [64, 256]


def test_rows_that_no_kernel_serves_are_vllms_own(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlp, _, config = of_gptq()
    calls: list[dict[str, Any]] = []

    def program(given: dict[str, Any]) -> Any:
        calls.append(given)
        return torch.zeros_like(given["x"])

    program.artifact = SimpleNamespace(tensors=kernel(Scheme.INT4, Dtype.FP16))  # type: ignore[attr-defined]
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program} if dtype == "float16" else {})
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    model.model.mlp = mlp
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=config), dtype=torch.float16)
    found = quantised.read(model, about, None)
    assert [one.name for one in found] == ["model.mlp"]
    mlps, names = importlib.import_module("tuner.vllm.mlp"), [one.name for one in found]
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)  # vLLM itself changes it when it is imported
    caplog.set_level("INFO", "vllm.plugins.tuner")
    mlps.replace_mlps(model, mlps.found_in(model), Path("a.tunerpack"), laid=names)
    quantised.install(model, found)
    said = "1 of them are quantised; vLLM's layers compute rows without a kernel"
    where = "" if torch.cuda.is_available() else " (on a CPU PyTorch's products)"
    assert list(dict.fromkeys(caplog.messages)) == [
        f"tuner: 1 of 1 MLPs run the kernels of a.tunerpack{where}",
        f"tuner: {said}",
    ]
    few, many = torch.ones(4, K, dtype=torch.float16), torch.ones(5, K, dtype=torch.float16)
    compiled = torch.compile(model.model.mlp, backend="eager", fullgraph=True)
    before = quantised.calls.copy()
    assert (compiled(few).sum(), len(calls)) == (0, 1)
    assert set(calls[0]) == {"x", "up.w", "down.w"}
    assert ((compiled(many) == 2 * (1 + 1) + 1).all(), len(calls)) == (True, 1)
    assert quantised.calls - before == {"kernel": 1, "library": 1}
    plain = SimpleNamespace(hf_config=SimpleNamespace(), dtype=torch.float16)
    assert quantised.read(model, plain, None) == []


def test_an_mlp_of_another_format_stays_vllms_own(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlp, _, config = of_gptq()
    program = SimpleNamespace(artifact=SimpleNamespace(tensors=kernel(Scheme.INT4_ZP, Dtype.FP16)))
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program})
    model = torch.nn.Module()
    model.mlp = mlp
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=config), dtype=torch.float16)
    caplog.set_level("INFO")
    assert quantised.read(model, about, None) == []
    assert "1 quantised MLPs keep vLLM's implementation: TUNER_PACK: up.w: has format 'int4_g128'" in caplog.text


def test_equal_reasons_of_several_mlps_are_said_once(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = SimpleNamespace(artifact=SimpleNamespace(tensors=kernel(Scheme.INT4, Dtype.FP16)))
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program})
    model = torch.nn.ModuleList([of_gptq()[0] for _ in range(2)])
    for mlp in model:
        del mlp.gate_up_proj.qweight
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=of_gptq()[2]), dtype=torch.float16)
    caplog.set_level("INFO")
    assert quantised.read(model, about, None) == []
    assert (
        "2 quantised MLPs keep vLLM's implementation: TUNER_PACK: an MLP.gate_proj.qweight: is missing" in caplog.text
    )


def test_plain_mlps_of_a_quantised_model_are_not_among_them(
    quantised: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = SimpleNamespace(artifact=SimpleNamespace(tensors=kernel(Scheme.INT4, Dtype.FP16)))
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program})
    plain = [Layer({"weight": torch.zeros(8, 8, dtype=torch.float16)}, [8]) for _ in range(2)]
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=of_gptq()[2]), dtype=torch.float16)
    caplog.set_level("INFO")
    assert quantised.read(torch.nn.ModuleList([LlamaMLP(*plain)]), about, None) == []
    assert "quantised" not in caplog.text


def test_a_damaged_pack_leaves_quantised_mlps_to_vllm(
    quantised: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mlp, _, config = of_gptq()
    (tmp_path / "cut.tunerpack").write_bytes(b"half of a pack")
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=config), dtype=torch.float16)
    assert quantised.read(torch.nn.ModuleList([mlp]), about, tmp_path / "cut.tunerpack") == []
    assert "quantised MLPs keep vLLM's implementation: " in caplog.text


def test_layers_of_equal_shape_have_one_graph(quantised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM compiles each distinct graph, so a graph must not name a layer."""
    program = SimpleNamespace(artifact=SimpleNamespace(tensors=kernel(Scheme.INT4, Dtype.FP16)))
    monkeypatch.setattr(quantised, "_kernels", lambda path, dtype: {range(1, 5): program})
    model = torch.nn.ModuleDict({"first": of_gptq()[0], "second": of_gptq()[0]})
    about = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=of_gptq()[2]), dtype=torch.float16)
    quantised.install(model, quantised.read(model, about, None))
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code.replace("first", "layer").replace("second", "layer"))
        return graph.forward

    for name in ("first", "second"):
        torch._dynamo.reset()
        torch.compile(model[name], backend=backend, fullgraph=True)(torch.ones(9, K, dtype=torch.float16))
    assert graphs[0] == graphs[1]
