"""How many trials of a search the kind gets that computes all ops as one op, and which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.conv.rows import rows
from benchmarks.conv.search import workload_of
from tests.support.cases import H200
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import joined_space_of
from tuner.core.trial.job import Objective
from tuner.core.trial.priors import Found
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.search.guesses.adapting import adapt
from tuner.search.joined import FIRST_TRIAL, MOST_FAILED, JoinedTurns, joined_guesses

ROWS = {row.name: row for row in rows()}
PAIR = workload_of(ROWS["r50-s1-3x3-1x1/b1"])


@dataclass
class Space:
    """A workload on a GPU; nothing asks for its schedules."""

    workload: Workload = PAIR
    gpu: Any = H200


@dataclass
class Trials:
    """The trials of a kind, as a search knows them; the model proposes the last guess."""

    tried: dict[Schedule, float | None] = field(default_factory=dict)

    @property
    def given(self) -> set[Schedule]:
        return set(self.tried)

    @property
    def own(self) -> dict[Schedule, float | None]:
        return self.tried

    def ask(self) -> Schedule | None:
        left = [one.schedule for one in GUESSES if one.schedule not in self.tried]
        return left[-1] if left else None


GUESSES = [*joined_guesses(Space(), 0)]  # type: ignore[arg-type]


def num_given(own_value: float | None, other_value: float, num_trials: int = 60) -> int:
    """How many of a search's trials it gets if all of its own take the given time, relative to the library's."""
    own, other = Trials(), Trials({Schedule(ops=()): other_value})
    kinds: Any = {PlanKind.FUSED: other, PlanKind.JOINED: own}
    turns = JoinedTurns(Space(), kinds, 0, lambda: None)  # type: ignore[arg-type]
    for number in range(num_trials):
        if candidate := turns.next(number, ()):
            assert number >= FIRST_TRIAL
            assert candidate.plan_kind is PlanKind.JOINED
            assert candidate.schedule is not None
            assert candidate.schedule not in own.tried
            own.tried[candidate.schedule] = own_value
    return len(own.tried)


@pytest.mark.parametrize(
    ("own", "other", "least", "most"),
    [
        (0.5, 0.8, 28, 31),
        (0.79, 0.8, 19, 21),
        (0.85, 0.8, 7, 8),
        (1.4, 0.8, 1, 1),
        (None, 0.8, MOST_FAILED, MOST_FAILED),
    ],
    ids=["far ahead", "slightly ahead", "slightly behind", "hopeless", "never measured"],
)
def test_measured_times_decide_how_many_trials_it_gets(own: float | None, other: float, least: int, most: int) -> None:
    assert least <= num_given(own, other) <= most


def test_its_first_trial_is_its_shortest_forecast() -> None:
    turns = JoinedTurns(Space(), {PlanKind.JOINED: Trials()}, 0, lambda: None)  # type: ignore[dict-item, arg-type]
    assert turns.next(FIRST_TRIAL - 1, ()) is None
    assert turns.next(FIRST_TRIAL, ()) == GUESSES[0]


def test_a_workload_without_the_kind_has_no_turns() -> None:
    large = Space(workload_of(ROWS["r50-s3-3x3-1x1/b1"]))
    turns = JoinedTurns(large, {PlanKind.FUSED: Trials()}, 0, lambda: None)  # type: ignore[dict-item, arg-type]
    assert [turns.next(number, ()) for number in range(9)] == [None] * 9
    assert [*joined_guesses(large, 0)] == []  # type: ignore[arg-type]


def test_a_result_is_adapted_to_another_number_of_images() -> None:
    candidate = Candidate(plan_kind=PlanKind.JOINED, schedule=Schedule(ops=(ConvPairSchedule(rows=4, columns=14),)))
    of = workload_of(ROWS["r50-s1-3x3-1x1/b4"])
    measured: Any = {"time_us": 9.0, "speedup": 1.2, "source": "job-1", "kernel_version": ""}
    found = Found(workload=of, objective=Objective(), candidate=candidate, **measured)
    assert adapt(Space(), found) == candidate  # type: ignore[arg-type]
    assert joined_space_of(launched(of, candidate)[0], H200) is None
