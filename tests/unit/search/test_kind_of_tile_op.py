"""A tile op kind with its own axis: spaces, rules, the search and its model handle the axis by its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tests.support.cases import H200
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule import levels
from tuner.core.schedule.axis import axis
from tuner.core.schedule.levels import TileOpSchedule
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.space import Space
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.op import GemmOp
from tuner.search.model.axes import distributions, from_params, to_params
from tuner.search.searcher import Searcher


@dataclass(frozen=True, kw_only=True)
class StretchedOp(GemmOp):
    """A product that another kind of kernel computes."""

    KIND: ClassVar[str] = "stretched"


@dataclass(frozen=True, kw_only=True)
class Stretched(TileOpSchedule, kind="stretched"):
    """The kind's only axis."""

    stretch: int = axis(1, values=(1, 2, 4), near=(1, 2, 4), word="stretch{}")


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Removes the kind after the test."""
    yield
    levels._KINDS.pop("stretched")
    levels.schedule_class.cache_clear()


@pytest.fixture(scope="module")
def workload() -> Workload:
    """A workload with the op between two products."""
    sizes = {"m": 16, "n": 512}
    ops = (
        GemmOp(name="before", k=512, source="x", **sizes),
        StretchedOp(name="between", k=512, source="before", **sizes),
        GemmOp(name="behind", k=512, source="between", **sizes),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


@pytest.fixture(scope="module")
def space(workload: Workload) -> Space:
    return Space(workload, H200)


def stretched(schedule: Schedule, value: int) -> Schedule:
    first, between, behind = schedule.ops
    assert isinstance(between, Stretched)
    return replace(schedule, ops=(first, replace(between, stretch=value), behind))


@pytest.mark.slow
def test_every_schedule_has_the_kinds_entry_in_its_place(space: Space) -> None:
    plain = next(iter(space))
    assert [type(op) for op in plain.ops] == [TileOpSchedule, Stretched, TileOpSchedule]
    assert stretched(plain, 2) in space.neighbours(plain)
    assert Schedule.from_json(json.loads(json.dumps(plain.to_json()))) == plain


def test_a_value_that_is_none_is_refused_and_so_is_an_entry_of_another_kind(workload: Workload, space: Space) -> None:
    plain = next(iter(space))
    with pytest.raises(IllegalSchedule, match="stretch 3: use one of 1, 2, 4"):
        check_schedule(workload, H200, stretched(plain, 3))
    other = replace(plain, ops=(plain.ops[0], plain.ops[0], plain.ops[2]))
    with pytest.raises(IllegalSchedule, match="for between: pass one of stretched"):
        check_schedule(workload, H200, other)


# In CI, every schedule has the kind's entry in its place.
@pytest.mark.soak
def test_a_search_finds_what_only_the_kinds_axis_gives(workload: Workload, space: Space) -> None:
    plain = next(iter(space))
    assert to_params(stretched(plain, 4))["stretch_1"] == 4
    assert from_params(to_params(stretched(plain, 4))) == stretched(plain, 4)
    assert "stretch_1" in distributions(plain)
    # It is compiled, so other values need other kernels, which a search does not try near its end.
    searcher, values = Searcher(space, seed=5, num_trials=90), list[int]()
    for number in range(90):
        candidate = searcher.ask()
        assert candidate is not None
        speedup = 1.0
        if candidate.schedule is not None:
            check_schedule(workload, H200, candidate.schedule)
            (between,) = (op for op in candidate.schedule.ops if isinstance(op, Stretched))
            values.append(between.stretch)
            speedup = 0.5 + 0.1 * between.stretch
        outcome = Measured(time_us=50 / speedup, library_us=50, speedup=speedup, spread=0, rounds=(), rel_error=0)
        searcher.tell(
            Trial(number=number, candidate=candidate, outcome=outcome, num_known=number, started_at=0, finished_at=1)
        )
    assert values[0] == 1
    assert values[:20].count(4) == 0, "first guesses are plain"
    assert values[-20:].count(4) > 3, "neighbours of the best have it, and the model has seen it"
