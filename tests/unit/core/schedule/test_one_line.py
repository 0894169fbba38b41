"""Parsing a schedule's one line gives the schedule that was printed."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest

from tests.support.lanes import one_in
from tests.support.presets import decoder_block
from tests.support.repository import ROOT
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

LINE = (
    "wgmma 16x56x256+16x32x256 s6 i6 window2 w4 cluster1x1x2 | row+row producer_first chunk8-sync by slice static 1/SM"
)
WORKLOADS = [
    ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096),
    ffn_pair(m=512, d_in=4096, d_hidden=4096, d_out=4096, gated=True),
    independent_pair((512, 4096, 4096), (512, 1024, 4096)),
    decoder_block("llama3-8b", m=16),
]


def shipped() -> list[Schedule]:
    """The schedules of all built-in winners."""

    def schedules(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("schedule"), dict):
                yield value["schedule"]
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from schedules(one)

    paths = sorted((ROOT / "tuner" / "winners").rglob("*.json"))
    return [Schedule.from_json(one) for path in paths for one in schedules(json.loads(path.read_text()))]


@pytest.mark.slow
def test_every_shipped_schedule_of_products_is_read_from_its_line() -> None:
    found = [one for one in shipped() if one.launch and not one.launch_ops]
    assert len(found) > 100
    for one in found[::4]:
        assert read_line(str(one)) == one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "gpu"),
    one_in(8, product(WORKLOADS, ["h200", "a100"])),
    ids=lambda one: one if isinstance(one, str) else one.describe(),
)
def test_every_schedule_that_a_search_draws_is_read_from_its_line(workload: Any, gpu: str) -> None:
    for one in any_space_of(workload, CATALOGUE[gpu]).sample(random.Random(0), 60):
        assert read_line(str(one)) == one
        assert read_line(f"  {one}\n".replace(" | ", "  |  ")) == one


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (("wgmma", "wgmmx"), "is not a schedule"),
        (("16x56x256", "16x56"), "does not begin with an engine and tiles"),
        (("window2", "windows2"), "is not a word of a schedule's line; give what only a kind has as JSON"),
        (("chunk8-sync", "chunk8"), "is not an order such as"),
        (("row+row", "row3+row"), "row has no width"),
        (("row+row", "panel+row"), "panel has a width"),
        (("row+row", "row"), "one of each per op"),
        (("s6 i6", "i6 s6"), "would be printed as"),
        ((" | ", " "), "has 1 parts separated by"),
    ],
)
def test_a_line_that_is_none_is_refused_with_what_would_be_right(changed: tuple[str, str], problem: str) -> None:
    assert str(read_line(LINE)) == LINE
    with pytest.raises(InvalidInput) as refused:
        read_line(LINE.replace(*changed))
    assert problem in str(refused.value)
