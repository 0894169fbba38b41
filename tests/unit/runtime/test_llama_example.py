"""examples/llama_decode.py with a tiny model on the CPU; requires PyTorch and transformers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.packs import ffn, make
from tests.support.repository import ROOT
from tuner.packs.contents import Entry, Rung
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("llama_decode", ROOT / "examples" / "llama_decode.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_decode"] = module  # a dataclass looks up its module
    spec.loader.exec_module(module)
    return module


def test_the_mlps_are_replaced_with_their_weights_merged_and_the_logits_are_the_same(example: Any) -> None:
    with torch.inference_mode():
        model = example.build(example.TINY, "cpu")
        count = sum(one.numel() for one in model.parameters())
        decoder = example.Decoder.of(model, 3, 32)
        before = decoder.step(model)
        assert torch.equal(decoder.step(model), before), "a step leaves the cache as it was"
        example.replace_mlps(model, None)
        after = decoder.step(model)
    assert before.shape == (3, 1, 97)
    assert example.rel_error(after, before) < 1e-2
    held = sum(one.numel() for one in model.parameters()) + sum(
        one.numel() for name, one in model.named_buffers() if ".mlp." in name
    )
    assert held == count, "no weight occurs twice"
    with torch.inference_mode():
        model.model.layers[1].mlp.w2.neg_()
        assert example.rel_error(decoder.step(model), before) > 0.05, "the operator's weights are what is computed"


def times(example: Any, logits: Any, eager: float, mlps: float, compiled: float | None, edges: int = 0) -> Any:
    return example.Times(eager_ms=eager, mlps_ms=mlps, compiled_ms=compiled, programmatic_edges=edges, logits=logits)


@pytest.mark.parametrize(("edges", "bar"), [(0, 1.04), (3, 1.06)])
def test_the_bars_are_those_of_mlps_promise_and_compiled_step(example: Any, edges: int, bar: float) -> None:
    logits = torch.ones(2, 1, 5)
    before, after = times(example, logits, 8.0, 3.2, 6.0), times(example, logits, 7.5, 2.7, 5.7, edges)
    rows = {row["check"].split(": ")[1]: row for row in example.rows_of(1, before, after, 2.6)}
    assert {name: (row["bar"], row["holds"]) for name, row in rows.items()} == {
        "logits": (0.05, True),
        "MLPs of the eager step": (1.17, True),
        "MLPs, over what the pack promises": (1.05, True),
        "eager step": (1.0, True),
        "compiled step": (bar, edges == 0),
    }
    assert rows["compiled step"]["value"] == round(6.0 / 5.7, 4)
    worse = example.rows_of(16, before, times(example, -logits, 9.0, 3.0, 6.5), 2.6)
    assert [row["holds"] for row in worse] == [False] * 5
    assert len(example.rows_of(1, before, after, None)) == 4
    assert len(example.rows_of(1, before, times(example, logits, 7.5, 2.7, None), 2.6)) == 4


def test_what_a_pack_promises_is_the_finals_time_at_so_many_rows(example: Any, tmp_path: Path) -> None:
    kernel = make(workload=ffn(full=False)).kernel
    gated = make(workload=ffn(full=True)).kernel
    entries = []
    for one in (kernel, gated):
        rung = Rung(m_lo=1, m_hi=16, kernel=one, speedup=1.2, provenance={"time_us": 55.5})
        entries.append(Entry(shape=Shape.of_workload(one.manifest["workload"]), rungs=(rung,)))
    write_pack(entries, tmp_path / "a.tunerpack")
    assert example.promised_us(tmp_path / "a.tunerpack", 64, 256, 16) == 55.5
    assert example.promised_us(tmp_path / "a.tunerpack", 64, 256, 8) is None
    assert example.promised_us(tmp_path / "a.tunerpack", 64, 512, 16) is None


@pytest.mark.slow
def test_the_smoke_test_compiles_the_model_whole_and_every_row_holds(
    example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert example.main(["--tiny", "--json", str(tmp_path / "rows.json")]) == 0
    assert "logits, compiled" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example.main([])
