"""The rows of the engine benchmark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.common.rows import ROWS, SUITES, choose_rows
from benchmarks.pairs.summary import summarise
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.space.mma_tilings import MmaTilings
from tuner.errors import InvalidInput

H200 = CATALOGUE["h200"]


def test_the_rows_are_those_that_were_agreed_on() -> None:
    counts = {"decode-plain": 12, "decode-swiglu": 12, "middle": 24, "prefill-plain": 10, "prefill-swiglu": 10}
    counts |= {"wide": 20, "wide-sustained": 20, "held-out": 16, "independent": 3}
    assert Counter(row.suite for row in ROWS) == counts
    assert set(SUITES) == {row.suite for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        is_sustained = row.suite.startswith("prefill") or row.suite.endswith("sustained")
        assert row.regime is (Regime.SUSTAINED if is_sustained else Regime.BURST)
        is_gated = "swiglu" in f"{row.suite}/{row.pair}" or row.suite in ("wide", "wide-sustained", "held-out")
        assert row.workload.tile_ops[0].gated == is_gated


@pytest.mark.slow
@pytest.mark.parametrize("suite", list(SUITES))
def test_every_row_has_legal_schedules(suite: str) -> None:
    rows = choose_rows([suite])
    for row in (rows[0], rows[-1]):
        tiling = next(MmaTilings(row.workload, H200).tilings())  # the first engine of the space
        assert len(space_of(row.workload, H200).orderings(tiling)) > 0


def test_rows_are_chosen_by_name_pair_or_m_and_not_by_a_part_of_it() -> None:
    assert {row.m for row in choose_rows(["decode-plain"], ["m1"])} == {1}
    assert [row.name for row in choose_rows(names=["middle/gpt3-tp8/m96"])] == ["middle/gpt3-tp8/m96"]
    with pytest.raises(InvalidInput, match="no row is called"):
        choose_rows(["independent"], ["m16"])


def test_ours_is_the_fastest_of_our_kinds_also_where_the_library_is_faster() -> None:
    times = {"library": 100.0, "two_launches": 99.0, "fused": 104.0, "fused_pdl": 98.0}
    rows: list[dict[str, Any]] = [
        {"suite": "wide", "pair": "4096-14336", "m": m, "kind_us": times | {"fused_pdl": us}}
        for m, us in ((320, 98.0), (384, 110.0))
    ]
    rows[1]["kind_us"]["two_launches"] = 112.0
    summary = summarise("wide", rows)
    assert (summary["ours"], summary["least_ours"]) == (0.9905, 0.9615)
    assert summary["missed"] == ["4096-14336/m384 ours_speedup 0.9615 of 0.985"]
