"""Forecasts that are kept for a test run are those that would be computed again."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import builders, kept_forecasts
from tests.support.kept_forecasts import _Log
from tests.support.kept_forecasts import kept_forecasts as keep
from tuner.core.model import forecast
from tuner.core.model.rates import CATALOGUE_RATES
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind

GPU = parse_target(builders.TARGET).gpu
WORKLOAD = builders.workload()
CANDIDATE = Candidate(plan_kind=PlanKind.FUSED, schedule=builders.schedule())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with keep(tmp_path):
        yield tmp_path
    kept_forecasts._log.cache_clear()


def ask(limit_us: float = math.inf, workload: Workload = WORKLOAD) -> float:
    """As another process, which has read nothing yet."""
    kept_forecasts._log.cache_clear()
    return forecast._forecast_us(workload, GPU, CANDIDATE, limit_us)


def test_a_forecast_is_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = kept_forecasts._compute(WORKLOAD, GPU, CANDIDATE, math.inf)
    assert ask() == computed
    monkeypatch.setattr(kept_forecasts, "_compute", lambda *_: pytest.fail("computed again"))
    assert ask() == ask(computed / 2) == computed
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_a_limit_that_is_exceeded_is_known_for_lower_ones_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = kept_forecasts._compute(WORKLOAD, GPU, CANDIDATE, math.inf)
    assert ask(computed / 2) == math.inf
    limits: list[float] = []
    monkeypatch.setattr(kept_forecasts, "_compute", lambda *of: limits.append(of[3]) or math.inf)
    assert ask(computed / 2) == ask(computed / 4) == math.inf
    assert limits == []
    ask(computed * 0.75)
    assert limits == [computed * 0.75]


def test_other_rates_and_other_workloads_are_other_forecasts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [ask(), ask(workload=builders.workload(64))]
    slow = replace(CATALOGUE_RATES, dram_share=CATALOGUE_RATES.dram_share / 10)
    monkeypatch.setattr(kept_forecasts, "rates_of", lambda gpu: slow)
    ask()
    assert times[0] != times[1]
    assert len(list(folder.iterdir())) == 3


def test_after_two_threads_have_read_at_once_the_next_line_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _Log(tmp_path / "a.forecasts")
    log.add("first", 1.0, 2.0)
    content = (tmp_path / "a.forecasts").read_bytes()

    class Shared(io.BytesIO):
        """While this thread reads the file, another one does."""

        def read(self, size: int | None = -1, /) -> bytes:
            monkeypatch.undo()
            log._read()
            return super().read(size)

    monkeypatch.setattr(Path, "open", lambda *_: Shared(content))
    assert log.find("first", 1.0) == 1.0
    log.add("second", 3.0, 4.0)
    assert log.find("second", 3.0) == 3.0
