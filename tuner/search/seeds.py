"""First guesses: what the simulator says of a draw.

The forecast only orders the first few candidates. It is not the truth anywhere: a card differs from it, and so does
the simulated twin, on purpose and by more than the best schedules differ from each other.
"""

from __future__ import annotations

import random

from tuner.core import forecast
from tuner.core.outcome import Candidate, PlanKind
from tuner.core.schedule import Schedule
from tuner.core.space import Space
from tuner.errors import IllegalSchedule, PlanError

#: Schedules that are forecast.
NUM_FORECASTS = 96
#: Of these, how many are tried.
NUM_SEEDS = 6


def forecast_us(space: Space, candidate: Candidate) -> float:
    """The simulator's time, microseconds; inf for what is refused, which then comes last."""
    try:
        return forecast.forecast_us(space.workload, space.gpu, candidate)
    except (IllegalSchedule, PlanError):
        return float("inf")


def seed_schedules(space: Space, rng: random.Random) -> list[Schedule]:
    """The schedules of a draw with the shortest forecasts, each of another tiling, the best first."""
    drawn = space.sample(rng, NUM_FORECASTS)
    drawn.sort(key=lambda schedule: forecast_us(space, Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)))
    by_tiling: dict[object, Schedule] = {}
    for schedule in drawn:
        by_tiling.setdefault(schedule.tiling, schedule)
    return list(by_tiling.values())[:NUM_SEEDS]


def first_guesses(space: Space, seed: int) -> list[Schedule]:
    """What a search of this seed begins with."""
    return seed_schedules(space, random.Random(f"{seed}/seeds"))
