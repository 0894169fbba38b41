"""The sum and norm before an MLP: which of vLLM's norms the operator replaces, with the same result."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.ir")
WIDE, EPS = 48, 1e-5


@pytest.fixture
def norm() -> Any:
    return importlib.import_module("tuner.vllm.norms.replaced")


class RMSNorm(torch.nn.Module):  # type: ignore[misc]
    """Named like vLLM's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter((torch.rand(WIDE) + 0.5).bfloat16(), requires_grad=False)
        self.variance_epsilon, self.has_weight, self.variance_size_override = EPS, True, None

    def forward(self, rows: Any, residual: Any = None) -> Any:
        both = rows.float() if residual is None else rows.float() + residual.float()
        normed = torch.nn.functional.rms_norm(both, (WIDE,), eps=EPS).bfloat16() * self.weight
        return normed if residual is None else (normed, both.bfloat16())


class GemmaRMSNorm(RMSNorm):
    """Multiplies by 1 + its weight."""


def layer(
    name: str = "LlamaDecoderLayer", module: str = "llama", norm: Any = None, ranks: int = 1, by: str = "tuner.vllm.mlp"
) -> Any:
    kind = type(name, (torch.nn.Module,), {"__module__": f"vllm.model_executor.models.{module}"})
    made = kind()
    made.input_layernorm, made.post_attention_layernorm = norm or RMSNorm(), norm or RMSNorm()
    made.mlp = type("PackedMlp", (torch.nn.Identity,), {"__module__": by})()
    made.mlp.down_proj = SimpleNamespace(tp_size=ranks)
    return made


@pytest.mark.parametrize("shape", [(5, WIDE), (1, 5, WIDE)])
def test_it_computes_the_norms_own_in_a_graph(norm: Any, shape: tuple[int, ...]) -> None:
    one = layer()
    names = one.state_dict().keys()
    rows, residual = torch.randn(2, *shape).bfloat16()
    norms = {name: getattr(one, name) for name in ("input_layernorm", "post_attention_layernorm")}
    assert norm.replace_norms(one) == 2
    assert one.state_dict().keys() == names
    for name, own in norms.items():
        assert getattr(one, name) is not own
        graph = torch.compile(getattr(one, name), backend="aot_eager", fullgraph=True)
        for found, wanted in zip(graph(rows, residual), own(rows, residual), strict=True):
            assert torch.equal(found, wanted)
        assert torch.equal(graph(rows), own(rows)), "a first layer has no residual yet"


def test_a_sum_that_only_another_of_these_norms_reads_is_not_rounded(norm: Any) -> None:
    rows, residual = torch.randn(2, 5, WIDE).bfloat16()
    layers = torch.nn.ModuleList([layer(), layer(), layer(norm=GemmaRMSNorm())])
    assert norm.replace_norms(layers) == 4
    _, wide = layers[0].post_attention_layernorm(rows, residual)
    assert torch.equal(wide, rows.float() + residual.float())
    graph = torch.compile(layers[1].input_layernorm, backend="aot_eager", fullgraph=True)
    normed, added = graph(rows, wide)
    assert (normed.dtype, added.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(added, (rows.float() + wide).bfloat16())
    _, last = layers[1].post_attention_layernorm(rows, residual)
    assert last.dtype == torch.bfloat16, "vLLM's norm reads it"
    kept = torch.nn.ModuleList([layer(), layer()])
    assert norm.replace_norms(kept, keeps_sums=False) == 4
    assert kept[0].post_attention_layernorm(rows, residual)[1].dtype == torch.bfloat16


@pytest.mark.parametrize(
    "other",
    [
        layer("Gemma2DecoderLayer", "gemma2"),
        layer("LlamaDecoderLayer", "another"),
        layer(norm=GemmaRMSNorm()),
        layer(ranks=2),
        layer(by="vllm.model_executor.models.llama"),
    ],
)
def test_others_stay_vllms(norm: Any, other: Any) -> None:
    own = other.input_layernorm, other.post_attention_layernorm
    assert norm.replace_norms(other) == 0
    assert (other.input_layernorm, other.post_attention_layernorm) == own
