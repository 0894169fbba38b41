"""The winners that come with the program: each row says where it comes from, and none is for a simulated GPU."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from benchmarks.common.rows import ROWS
from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import CATALOGUE
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

FILES = sorted(FOLDER.glob("*.json"))


def test_there_are_winners_of_the_card_that_was_measured_and_none_of_others() -> None:
    assert len(ShippedWinners().of("h200")) > 500
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_winner_is_legal_where_it_was_found(path: Path) -> None:
    gpu = CATALOGUE[path.stem]
    for one in ShippedWinners().of(path.stem):
        assert one.candidate.schedule is not None
        check_schedule(one.workload, gpu, one.candidate.schedule)
        check_kind(one.workload, gpu, one.candidate.plan_kind, one.candidate.schedule)
        assert one.time_us > 0
        assert one.speedup > 0


def test_a_row_has_the_workload_of_the_benchmarks_row_of_its_name() -> None:
    rows = {row.name: row.workload for row in ROWS}
    found = {one.source.removeprefix("shipped "): one.workload for one in ShippedWinners().of("h200")}
    assert found == {name: rows[name] for name in found}
