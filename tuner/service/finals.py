"""Who goes to the finals, and what the finals say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tuner.core.evaluator import FinalsTimes
from tuner.core.job import Trial
from tuner.core.outcome import Measured, PlanKind
from tuner.core.records import FinalRow, Verdict

#: Fused schedules that are measured again; the best of a search is often the luckiest, not the fastest.
NUM_FUSED_FINALISTS = 3


def _time_us(trial: Trial) -> float:
    assert isinstance(trial.outcome, Measured)
    return trial.outcome.time_us


def choose_finalists(history: Iterable[Trial]) -> tuple[Trial, ...]:
    """The library, the best two launches and the best fused schedules, of those that were measured, in that order."""
    measured = sorted((trial for trial in history if isinstance(trial.outcome, Measured)), key=_time_us)
    places = {PlanKind.LIBRARY: 1, PlanKind.TWO_LAUNCHES: 1, PlanKind.FUSED: NUM_FUSED_FINALISTS}
    return tuple(
        trial
        for kind, num_places in places.items()
        for trial in [trial for trial in measured if trial.candidate.plan_kind is kind][:num_places]
    )
