"""The order of launches around an attention, compared with an independent definition."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.between import between
from tests.support.cases import H200, ordering, tiling
from tuner.core.legal.legality import kind_problem, runs_problem
from tuner.core.model.runs import ways_to_launch
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import check_launches, launches_of
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import CoverageError

workloads = st.builds(between, rotary=st.booleans(), norm=st.booleans(), num_behind=st.integers(0, 3))


@st.composite
def launched(draw: st.DrawFn) -> tuple[Workload, tuple[tuple[int, ...], ...]]:
    """A workload, and its ops in any order, divided arbitrarily into launches."""
    workload = draw(workloads)
    order = draw(st.permutations(range(len(workload.ops))))
    places = draw(st.sets(st.integers(1, len(workload.ops) - 1)))
    bounds = pairwise((0, *sorted(places), len(workload.ops)))
    return workload, tuple(tuple(sorted(order[begin:end])) for begin, end in bounds)


def is_right(workload: Workload, launches: tuple[tuple[int, ...], ...]) -> bool:
    """Whether no op is launched before the previous op, which it reads, and the attention has its own launch."""
    launch_of = {workload.ops[op].name: number for number, launch in enumerate(launches) for op in launch}
    numbers = [launch_of[op.name] for op in workload.ops]
    return numbers == sorted(numbers) and numbers.count(launch_of["attention"]) == 1


@given(launched())
def test_launches_are_taken_where_the_order_is_right_and_only_there(
    given_launches: tuple[Workload, tuple[tuple[int, ...], ...]],
) -> None:
    workload, launches = given_launches
    try:
        check_launches(workload, launches)
    except CoverageError:
        assert not is_right(workload, launches)
    else:
        assert is_right(workload, launches)


@given(workloads)
def test_every_kind_that_is_legal_has_launches_in_a_right_order(workload: Workload) -> None:
    num_ops, forced = len(workload.tile_ops), workload.forced_starts
    tried = 0
    ways = [(kind, ()) for kind in PlanKind if kind.is_ours and not kind.is_in_runs]
    for kind, starts in [*ways, *ways_to_launch(num_ops)]:
        if kind_problem(workload, H200, kind) or runs_problem(num_ops, kind, starts, forced):
            continue
        schedule = Schedule.of(tiling=tiling(*[(16, 32)] * num_ops), ordering=ordering(num_ops, run_starts=starts))
        launches = launches_of(workload, Candidate(plan_kind=kind, schedule=schedule))
        check_launches(workload, launches)
        assert is_right(workload, launches)
        tried += 1
    assert tried >= 2
