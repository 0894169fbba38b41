"""A result with several launches needs no permission if an op has its own launch in every plan kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attentions import alone
from tests.support.cases import tiling
from tuner.client.commands.fetch import check_answer
from tuner.client.errors import UnfusedWins
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule

PRODUCTS = Schedule.of(tiling((64, 64), (64, 32)), Ordering(rasters=(Raster(), Raster()))).to_json()
LEVELS = {"ops": [{"tile": {"m": 64, "n": 64, "k": 32}}], "launch": {}, "order": {}}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "products": (PRODUCTS, False),
    "an empty list": (PRODUCTS | {"attentions": []}, False),
    "behind an attention": (PRODUCTS | alone().to_json(), True),
    "an attention": (alone().to_json(), True),
    "products by level": (LEVELS, False),
    "a kind of a package": (LEVELS | {"ops": [{"op": "sieve", "holes": 3}, *LEVELS["ops"]]}, True),
    "a tile op by its name": (LEVELS | {"ops": [{"op": "gemm", **LEVELS["ops"][0]}]}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_only_an_op_with_a_launch_of_its_own_needs_no_leave(name: str) -> None:
    schedule, has_launch_op = CASES[name]
    row = {"candidate": {"plan_kind": "two_launches", "schedule": schedule}, "speedup": 1.2, "time_us": 10.0}
    best = {"job_id": "job-1", "winner": "two_launches", "winner_row": 0, "finals": [row], "simulated": True}
    best |= {"verdict": "do_not_fuse", "verdict_words": "two launches"}
    try:
        check_answer(best, accept_unfused=False, even_if_slower=False)
    except UnfusedWins:
        assert not has_launch_op
    else:
        assert has_launch_op
