"""The built-in winners: each row states its origin, and none is for a simulated GPU."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from benchmarks.attention import layer_rows
from benchmarks.chains import rows as chains
from benchmarks.common.rows import ROWS
from benchmarks.few_bits import rows as few_bits
from benchmarks.few_bits.search import workload_of
from benchmarks.pairs.shipped_finals import finals_of
from tuner.core.legal.legality import check_candidate
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.trial.records import Verdict
from tuner.ops.gemm.quantised import Scheme
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FINALS, FOLDER

FILES = sorted(FOLDER.glob("*.json"))


def test_there_are_winners_of_the_cards_that_were_measured_and_none_of_others() -> None:
    assert [path.stem for path in FILES] == ["h100", "h200"]
    assert len(ShippedWinners().of("h200")) > 500
    assert len(ShippedWinners().of("h100")) > 100
    assert ShippedWinners().of("simulated:h200") == ()
    assert ShippedWinners().of("a40") == ()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_named_after_a_gpu_and_each_row_says_where_it_comes_from(path: Path) -> None:
    assert path.stem in CATALOGUE
    for name, row in json.loads(path.read_text()).items():
        assert len(row["commit"]) >= 7, name
        datetime.datetime.fromisoformat(row["date"])
        assert row["trials"] >= 1, name
        assert row["winners"], name
        assert row.get("kernel_version") or row.get("remark"), f"{name}: which kernels were measured?"
        assert path.stem.upper() in row.get("gpu", path.stem.upper()), f"{name}: of another card"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_winner_is_legal_where_it_was_found(path: Path) -> None:
    gpu = CATALOGUE[path.stem]
    for one in ShippedWinners().of(path.stem):
        check_candidate(one.workload, gpu, one.candidate)
        assert one.time_us > 0
        assert one.speedup > 0


def test_a_row_has_the_workload_of_the_benchmarks_row_of_its_name() -> None:
    rows = {row.name: row.workload for row in ROWS} | {f"chains/{row.name}": row.workload for row in chains.ROWS}
    layers = (*layer_rows.ROWS, *layer_rows.OTHER_ROWS)
    rows |= {f"layers/{name}": part for row in layers for name, part in row.named_parts.items()}
    rows |= {f"few-bits/{row.name}": workload_of(row) for row in few_bits.rows() if row.scheme.name in set(Scheme)}
    found = {one.source.removeprefix("shipped "): one.workload for one in ShippedWinners().of("h200")}
    elsewhere = ("h100/", "conv/")  # those of convolutions: tests/unit/benchmarks/test_conv_ship.py
    found = {name: workload for name, workload in found.items() if not name.startswith(elsewhere)}
    assert found == {name: rows[name] for name in found}


def _known(gpu: str) -> set[str]:
    """The names of its rows, except those with an op of a missing kind."""
    rows = json.loads((FOLDER / f"{gpu}.json").read_text())
    return {name for name, row in rows.items() if not Workload.from_json(row["workload"]).unknown_kinds}


def test_a_card_has_the_winners_of_a_card_like_it_where_nobody_searched_a_problem_on_it() -> None:
    own, others = _known("h100"), _known("h200") - _known("h100")
    found = {one.source for one in ShippedWinners().of("h100")}
    assert found == {f"shipped {name}" for name in own} | {f"shipped h200/{name}" for name in others}
    for one in ShippedWinners().of("h100"):
        check_candidate(one.workload, CATALOGUE["h100"], one.candidate)


def test_winners_of_another_card_are_no_finals_of_this_one() -> None:
    assert not any(source.startswith("shipped h200/") for source in ShippedWinners().finals("h100"))


@pytest.mark.parametrize(("gpu", "least"), [("h100", 14), ("h200", 60)])
def test_what_finals_said_is_what_the_results_of_the_pairs_say_and_each_is_of_a_winners_problem(
    gpu: str, least: int
) -> None:
    results = json.loads(Path(f"benchmarks/results/{gpu}/pairs.json").read_text())
    assert json.loads((FINALS / f"{gpu}.json").read_text()) == finals_of(results), "make results renews it"
    found = ShippedWinners().finals(gpu)
    assert len(found) >= least
    assert set(found) <= {one.source for one in ShippedWinners().of(gpu)}
    assert {Verdict(one.verdict) for one in found.values()} <= set(Verdict)


def test_a_target_without_results_has_no_finals() -> None:
    assert {Verdict(one.verdict) for one in ShippedWinners().finals("h200").values()} == set(Verdict)
    assert ShippedWinners().finals("simulated:h200") == {}


def test_a_row_that_was_not_measured_whole_has_no_finals() -> None:
    meta = {"gpu": "NVIDIA H200", "kernel_version": "0", "commit": "0", "date": "2026"}
    row = {"suite": "s", "pair": "p", "m": 1, "winner": "fused", "verdict": "fused wins"}
    rows = [row | {"kind_us": {"library": None, "fused": 1.0}}, row | {"kind_us": {"library": 2.0, "fused": None}}]
    assert finals_of({"meta": meta, "rows": rows}) == {}
    whole = row | {"kind_us": {"library": 2.0, "fused": 1.5, "fused_pdl": 1.0}, "torch_us": 3.0}
    (found,) = finals_of({"meta": meta, "rows": [whole]}).items()
    assert found[0] == "s/p/m1"
    assert (found[1]["ours_us"], found[1]["library_us"], found[1]["torch_us"]) == (1.5, 2.0, 3.0), "the winner's"
    library = whole | {"winner": "library", "verdict": "do not fuse"}
    (found,) = finals_of({"meta": meta, "rows": [library]}).items()
    assert (found[1]["ours_us"], found[1]["ours"]) == (1.0, "fused_pdl")
