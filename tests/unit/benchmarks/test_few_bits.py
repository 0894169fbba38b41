"""Floors of pairs with weights of few bits, compared with figures calculated by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.called import called
from benchmarks.few_bits import ranks, search
from benchmarks.few_bits.left_out import SCHEDULES, patches_of, waterfall_row
from benchmarks.few_bits.rows import PAIRS, SCHEMES, rows
from tests.support.repository import ROOT
from tuner.core.problem.gpu import CATALOGUE
from tuner.errors import InvalidInput
from tuner.winners.shipped import FOLDER
from tuner.workers.source.render import render

LLAMA, LLAMA_70B = PAIRS[:2]


@pytest.mark.parametrize(
    ("scheme", "pair", "m", "floor_us"),
    [
        ("tensor", LLAMA, 1, 40.0),  # bytes
        ("tensor", LLAMA, 512, 114.2),  # operations
        ("int4", LLAMA, 16, 20.6),
        ("int4", LLAMA, 128, 57.1),
        ("mxfp4", LLAMA, 1, 21.3),
        ("w8a16", LLAMA_70B, 1, 20.0),
    ],
)
def test_a_floor_is_the_longer_of_bytes_and_operations(scheme: str, pair: object, m: int, floor_us: float) -> None:
    assert SCHEMES[scheme].floor_us(pair, m) == pytest.approx(floor_us, abs=0.06)  # type: ignore[arg-type]


def test_what_is_left_out_is_in_the_kernels() -> None:
    for row, (line, *_) in SCHEDULES.items():
        of = waterfall_row(row, line)
        source = render(of.workload, of.schedule.tiling)
        for patches in patches_of(row).values():
            for patch in patches:
                assert patch.applied(source) != source


def test_what_decides_comes_first_and_nothing_twice() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names) == len(SCHEMES) * len(PAIRS) * 5
    assert names[0] == "tensor/4096-14336/m1"
    assert "tensor/4096-14336/m512" not in names[: len(names) // 2]


def test_a_name_is_that_of_one_row_or_the_beginning_of_several() -> None:
    assert [row.name for row in called(rows(), ["int4/4096-14336/m1"])] == ["int4/4096-14336/m1"]
    assert {row.m for row in called(rows(), ["int4/4096-14336"])} == {1, 16, 64, 128, 512}
    assert called(rows(), []) == rows()
    named = called(rows(), ["int4/8192-3584/m16", "w8a16/4096-14336/m1", "int4/8192-3584/m16"])
    assert [row.name for row in named] == ["int4/8192-3584/m16", "w8a16/4096-14336/m1"], "the first comes first"
    with pytest.raises(InvalidInput, match="no row's name begins with int5"):
        called(rows(), ["int5"])


def test_rows_of_other_commits_stay_and_a_row_that_lacks_an_installed_peer_is_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.few_bits import peers

    row = next(one for one in rows() if one.name == "token/4096-14336/m1")
    card = {"gpu": "NVIDIA H200", "driver": "580.1"}
    lines = [{"row": row.name, "peer": "cublaslt", "us": 1.0}, {"row": row.name, "peer": "other", "commit": "b"}]
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"meta": {**card, "commit": "a", "torch": "1"}, "rows": lines}))
    done = peers.rows_of_this_card(path, {**card, "torch": "2"})
    assert [line["commit"] for line in done] == ["a", "b"]
    assert peers.missing_peers(row, done) == {"cublaslt deferred"}
    assert peers.missing_peers(row, [*done, {"row": row.name, "peer": "cublaslt deferred", "refused": "no"}]) == set()
    assert peers.rows_of_this_card(path, {**card, "driver": "590.1"}) == []
    assert peers.rows_of_this_card(tmp_path / "none.json", card) == []


def test_ranks_are_of_two_pairs_of_each_width_and_of_150_schedules() -> None:
    found = ranks.pairs()
    assert [one.name for one in found[:2]] == ["tensor/4096-14336/m16", "tensor/8192-3584/m16"]
    widths = [one.workload.tile_ops[0].weight_bits(one.workload.dtype) for one in found]
    assert (len(found), widths.count(8), widths.count(4)) == (6, 4, 2)
    assert 28 * len(found) >= 150


# In CI, tests/unit/core/model has the simulator.
@pytest.mark.soak
def test_the_report_of_ranks_is_what_the_simulator_says_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one pair of it; `python -m benchmarks.few_bits.ranks --again` renews the report."""
    (pair,) = [one for one in ranks.pairs() if one.name == "w8a16/8192-3584/m16"]
    monkeypatch.setattr(ranks, "pairs", lambda: [pair])
    folder = ROOT / "benchmarks/results/h200"
    (row,) = ranks.judged(folder / "few_bits_trials.jsonl.gz", CATALOGUE["h200"], fits=False)
    report = json.loads((folder / "few_bits_ranks.json").read_text())["rows"]
    (kept,) = [one for one in report if one["row"] == pair.name]
    assert row["schedules"] == kept["schedules"] == 28
    assert row["spearman"] == pytest.approx(kept["spearman"], abs=0.01)
    assert row["spearman"] >= ranks.SPEARMAN_BAR


def test_what_ships_is_what_the_report_has(tmp_path: Path) -> None:
    search.ship("h200", tmp_path)
    made = json.loads((tmp_path / "h200.json").read_text())
    shipped = json.loads((FOLDER / "h200.json").read_text())
    assert made == {name: row for name, row in shipped.items() if name.startswith("few-bits/")}, "run search --ship"
    assert made["few-bits/token/4096-14336/m16"]["winners"]["fused_pdl"][0]["time_us"] == pytest.approx(42.5, abs=0.1)
