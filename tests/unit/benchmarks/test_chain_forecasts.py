"""What a forecast of chains is judged by: the schedules of a seed, and what the simulator says of them now."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.chains import forecasts
from benchmarks.chains.rows import choose_rows
from tests.support.cases import H200
from tuner.core.model.forecast import forecast_us
from tuner.core.schedule.candidate import fused
from tuner.errors import InvalidInput

(ROW,) = choose_rows(["llama3-70b-tp8-synthetic/m16"])
COUNT = 4


def report(seed: int) -> dict[str, Any]:
    """As a card leaves it, where a schedule takes what it was forecast to take."""
    chosen = forecasts.drawn(ROW, H200, COUNT, seed)
    times = [forecast_us(ROW.workload, H200, fused(one)) for one in chosen]
    findings = [
        {"digest": one.digest, "schedule": str(one), "us": us, "ratio": us / 100, "forecast_us": 1.0}
        for one, us in zip(chosen, times, strict=True)
    ]
    return {"meta": {"gpu": "NVIDIA H200"}, "rows": [forecasts.row_of(ROW, findings, COUNT, seed)]}


def test_a_seed_draws_its_own_schedules_always_the_same() -> None:
    first, again, other = (forecasts.drawn(ROW, H200, COUNT, seed) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_a_row_is_judged_by_the_schedules_of_its_seed() -> None:
    (row,) = forecasts.judged([report(7)])["rows"]
    assert (row["seed"], row["timed"], row["spearman"], row["holds"]) == (7, COUNT, 1.0, True)
    assert [one["forecast_us"] for one in row["findings"]] == [round(one["us"], 3) for one in row["findings"]]
    other = report(7)
    other["rows"][0]["seed"] = 8
    with pytest.raises(InvalidInput, match="are not drawn any more"):
        forecasts.judged([other])


def test_a_row_of_before_seeds_were_told_is_of_the_first_one() -> None:
    found = report(forecasts.SEED)
    del found["rows"][0]["seed"]
    assert forecasts.judged([found])["rows"][0]["seed"] == forecasts.SEED
