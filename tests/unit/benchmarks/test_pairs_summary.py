"""The summary of a suite's rows, compared with its targets."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.rows import ROWS, SUITES
from benchmarks.pairs.summary import summarise


def rows_at(suite: str, **figures: Any) -> list[dict[str, Any]]:
    common: dict[str, Any] = {
        "fused_speedup": 2.0,
        "fused_speedup_pdl": 2.0,
        "verdict_speedup": 2.0,
        "over_reference": 1.0,
        "kind_us": {"library": 20.0, "fused": 10.0},
    }
    return [{"suite": suite, "pair": row.pair, "m": row.m, **common, **figures} for row in ROWS if row.suite == suite]


@pytest.mark.parametrize("suite", list(SUITES))
def test_a_suite_holds_only_as_a_whole_and_where_no_row_is_below_its_bar(suite: str) -> None:
    rows = rows_at(suite)
    assert summarise(suite, rows)["holds"] is True
    assert summarise(suite, rows[1:])["holds"] is None
    assert summarise(suite, rows)["fused"] == 2.0
    low = rows_at(suite, fused_speedup=0.9, verdict_speedup=0.9, kind_us={"library": 9.0, "fused": 10.0})
    assert summarise(suite, low)["holds"] is False


def test_a_bar_over_the_reference_is_for_few_rows_of_the_named_pairs() -> None:
    missed = summarise("decode-swiglu", rows_at("decode-swiglu", over_reference=1.2))["missed"]
    assert len(missed) == 4
    assert all("reference" in one for one in missed)
