"""The attentions and layers of a pack that fit a model of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.attention_packs import made_of, make_attention
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.unit.runtime.small_models import model_of
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.contents import Entry, Rung
from tuner.packs.shapes import shape_of
from tuner.packs.write import write_pack
from tuner.runtime.binding.native import RuntimeFailure

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

#: The model of `tests.support.between`, and of its attention with a projection.
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
}
SEQUENCES, LENGTH = 4, 512


class Opened:
    """Stands in for an open pack, whose kernels need a card."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[dict[str, Any]] = []
        self.failure = ""

    def attention(self, **asked: Any) -> Any:
        if self.failure:
            raise RuntimeFailure(-1, self.failure)
        self.asked.append(asked)
        return SimpleNamespace(asked=asked)

    layer = attention


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was registered with the operators."""
    from tuner.runtime import torch_attention, torch_layer

    found: list[Any] = []
    monkeypatch.setattr(torch_attention, "register", found.append)
    monkeypatch.setattr(torch_layer, "register", found.append)
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with an attention and its projection, another without, and a layer that begins with its qkv."""
    sizes: dict[str, Any] = {"sequences": SEQUENCES, "query_heads": 2, "max_length": LENGTH}
    sizes |= {"kv_heads": 2, "head_dim": 64}
    workload = between(sequences=SEQUENCES, dtype=Dtype.BF16, num_behind=3)
    made = [
        make_attention(d_out=256, **sizes),
        make_attention(**sizes),
        made_of(workload, candidate_of(workload, PlanKind.N_LAUNCHES_PDL)),
    ]
    rungs = [Rung(m_lo=SEQUENCES, m_hi=SEQUENCES, max_length=LENGTH, kernel=one.kernel) for one in made]
    shapes = [shape_of(one.workload.to_json()) for one in made]
    found = tmp_path_factory.mktemp("pack") / "model.tunerpack"
    write_pack([Entry(shape=shape, rungs=(rung,)) for shape, rung in zip(shapes, rungs, strict=True)], found)
    return found


def layer_of(family: str = "Llama", **changes: Any) -> Any:
    return model_of(family, **{"sliding_window": None, **SIZES, **changes}).model.layers[0]


def test_an_attention_with_its_projection(path: Path, registered: list[Any]) -> None:
    from tuner.runtime.models import kernels

    opened = Opened(path)
    found = kernels.attentions(opened, layer_of().self_attn)  # type: ignore[arg-type]
    assert (found.sizes, found.reason) == ({(SEQUENCES, LENGTH)}, "")
    wanted = {"sequences": 4, "length": 512, "dtype": "bfloat16", "heads": 4, "kv_heads": 2, "head_dim": 64}
    assert opened.asked == [{**wanted, "scale": 64**-0.5, "d_out": 256}]
    assert len(registered) == 1


@pytest.mark.parametrize("family", ["Llama", "Phi3"])
def test_a_layer_that_begins_with_its_qkv(family: str, path: Path, registered: list[Any]) -> None:
    from tuner.runtime.models import kernels

    opened = Opened(path)
    found = kernels.layers(opened, layer_of(family))  # type: ignore[arg-type]
    assert (found.sizes, found.reason) == ({(SEQUENCES, LENGTH)}, "")
    assert opened.asked == [{"number": 0, "sequences": 4, "length": 512, "shares_sms": True}]
    assert len(registered) == 1


@pytest.mark.parametrize(
    ("changes", "of_attention", "of_layer"),
    [
        ({"num_key_value_heads": 4}, "kv_heads is 4 here and 2 in the pack", "kv_heads is 4 here and 2 in the pack"),
        ({"hidden_size": 128}, "d_out is 128 here and 256 in the pack", "qkv.k is 128 here and 256 in the pack"),
        ({"intermediate_size": 256}, "", "gate_up.n is 256 here and 512 in the pack"),
        ({"rms_norm_eps": 1e-6}, "", "qkv.eps is 1e-06 here and 1e-05 in the pack"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, Any], of_attention: str, of_layer: str, path: Path, registered: list[Any]
) -> None:
    from tuner.runtime.models import kernels

    layer = layer_of(**changes)
    attention = kernels.attentions(Opened(path), layer.self_attn)  # type: ignore[arg-type]
    assert of_attention in attention.reason
    assert bool(attention.sizes) == (not of_attention)
    whole = kernels.layers(Opened(path), layer)  # type: ignore[arg-type]
    assert of_layer in whole.reason
    assert not whole.sizes
    assert len(registered) == len(attention.sizes)


def test_biases_of_a_model_and_kernels_that_cannot_be_loaded(path: Path, registered: list[Any]) -> None:
    from tuner.runtime.models import kernels

    assert "qkv.bias is True here and False" in kernels.layers(Opened(path), layer_of("Qwen2")).reason  # type: ignore[arg-type]
    opened = Opened(path)
    opened.failure = "no memory"
    assert kernels.attentions(opened, layer_of().self_attn).reason == "no memory"  # type: ignore[arg-type]
    assert not registered
