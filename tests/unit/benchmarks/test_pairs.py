"""The rows of the engines' benchmark."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.common.rows import ROWS, SUITES, choose_rows
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.space.mma_tilings import MmaTilings
from tuner.errors import InvalidInput

H200 = CATALOGUE["h200"]


def test_the_rows_are_those_that_were_agreed_on() -> None:
    counts = {"decode-plain": 12, "decode-swiglu": 12, "middle": 24, "prefill-plain": 10, "prefill-swiglu": 10}
    assert Counter(row.suite for row in ROWS) == counts | {"independent": 3}
    assert set(SUITES) == {row.suite for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.regime is (Regime.SUSTAINED if row.suite.startswith("prefill") else Regime.BURST)
        assert all(op.gated == ("swiglu" in f"{row.suite}/{row.pair}") for op in row.workload.tile_ops[:1])


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
