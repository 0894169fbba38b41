"""An MLP by the kernels of a run that starts with a norm; PyTorch replaces the kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.presets import LayerRun, decoder_layer
from tuner.core.problem.dtype import Dtype
from tuner.packs.contents import Entry, Rung
from tuner.packs.shapes import ChainShape, shape_of

torch = pytest.importorskip("torch")

HIDDEN, INNER, EPS = 64, 96, 1e-5


class ByTorch:
    """A run's program."""

    def __call__(self, tensors: Mapping[str, Any]) -> Any:
        from tuner.runtime.pytorch.formula import normed, product

        rows = normed(tensors["residual"], tensors["residual.squares"], EPS)
        hidden = product(rows, tensors["gate_up.w"], None, activation="silu", gated=True)
        return product(hidden, tensors["down.w"], None)

    def shape(self, tensor: str) -> tuple[int, ...]:
        assert tensor == "residual.squares"
        return (32,)


def entry(rungs: tuple[Rung, ...] = (), **changes: Any) -> Entry:
    """The run of a model's MLP, with `changes` in its first op."""
    workload = decoder_layer("llama3-8b", dtype=Dtype.BF16, sequences=1, max_length=64, run=LayerRun.MLP)
    up, down = shape_of(workload.to_json()).to_json()["ops"]
    ops = [{**up, "n": INNER, "k": HIDDEN, **changes}, {**down, "n": HIDDEN, "k": INNER}]
    return Entry(shape=ChainShape(dtype="bf16", ops_json=json.dumps(ops)), rungs=rungs)


def rung(low: int, high: int, *, is_kernel: bool) -> Rung:
    kernel: Any = SimpleNamespace() if is_kernel else None
    return Rung(m_lo=low, m_hi=high, kernel=kernel)


@pytest.fixture
def weights() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(2 * INNER, HIDDEN).to(torch.bfloat16), torch.randn(HIDDEN, INNER).to(torch.bfloat16)


@pytest.fixture
def run_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns a function that opens the run of a pack with some entries, for some weights; the function also returns
    the row counts that were loaded."""
    from tuner.vllm import normed_run

    loaded = list[int]()

    def found(entries: list[Entry], w1: Any, w2: Any, activation: str = "silu") -> tuple[Any, list[int]]:
        def layer(*, number: int, sequences: int, shares_sms: bool) -> Any:
            (one,) = (one for one in entries[number].rungs if one.m_hi == sequences)
            assert shares_sms
            if one.kernel is None:
                return None
            loaded.append(sequences)
            return ByTorch()

        path = tmp_path / "run.tunerpack"
        path.write_bytes(b"a pack")
        monkeypatch.setattr(normed_run, "read_pack", lambda _: SimpleNamespace(entries=entries))
        monkeypatch.setattr(normed_run, "opened", lambda _: SimpleNamespace(layer=layer))
        for one in (normed_run._runs, normed_run._loaded):
            one.cache_clear()
        return normed_run.of_pack(path, w1, w2, activation), loaded

    return found


def test_rows_that_are_normed_come_out_as_the_mlp_has_them_to_the_bit(run_of: Any, weights: Any) -> None:
    kernels, loaded = run_of([entry((rung(1, 4, is_kernel=False), rung(5, 16, is_kernel=True)))], *weights)
    assert loaded == [16]
    assert [rows for rows in range(1, 20) if kernels.is_kernel(rows)] == [*range(5, 17)]
    x = torch.nn.functional.rms_norm(torch.randn(7, HIDDEN), (HIDDEN,), eps=EPS).to(torch.bfloat16)
    gate, up = torch.nn.functional.linear(x, weights[0]).chunk(2, dim=-1)
    wanted = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, weights[1])
    assert torch.equal(kernels(x, *weights, "silu"), wanted)


class Parameter(torch.Tensor):  # type: ignore[misc, name-defined]
    """A parameter as in vLLM: its own class, whose interface has no name for bfloat16."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"typestr": "<V2", "shape": (2, 3), "data": (0, False), "version": 2}


def test_a_weight_of_vllms_own_class_is_a_tensor_of_pytorch() -> None:
    from tuner.runtime.tensors.arrays import library_of, matrix_reader, named_view, view

    plain = torch.ones(2, 3).to(torch.bfloat16)
    own = plain.as_subclass(Parameter)
    assert type(own) is Parameter
    assert named_view("gate_up.w", own, has_lines=True) == view(plain)
    assert type(library_of(own)) is type(library_of(plain))
    assert matrix_reader(own)(own, 3) == plain.data_ptr()


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2 * INNER},
        {"k": 2 * HIDDEN},
        {"activation": "relu"},
        {"bias": True},
        {"gated": False},
        {"weights": "int4"},
    ],
)
def test_a_run_of_another_mlp_is_not_taken(run_of: Any, weights: Any, changes: dict[str, Any]) -> None:
    found, loaded = run_of([entry((rung(1, 16, is_kernel=True),), **changes)], *weights)
    assert (found, loaded) == (None, [])


def test_a_run_that_is_the_librarys_is_none(run_of: Any, weights: Any) -> None:
    found, loaded = run_of([entry((rung(1, 16, is_kernel=False),))], *weights)
    assert (found, loaded) == (None, [])
