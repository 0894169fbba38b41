"""Ladders: the order in which rows are searched, the fewest kernels, and the kernel for each number of rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import schedule, spec, workload
from tuner.core.problem.gpu import parse_target
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import LEAST_TRIALS, BatchRecord, plan_batch, search_order
from tuner.core.trial.ladders.cover import least_cover
from tuner.core.trial.ladders.ladder import Measurement, Option, kernel_name, make_ladder
from tuner.ops.gemm.pairs import independent_pair
from tuner.workers.source.render import render

GPU = parse_target("simulated:h200").gpu


def fewest(sets: list[int], needed: int) -> int:
    """The minimum by exhaustive search."""
    for count in range(len(sets) + 1):
        for some in combinations(sets, count):
            if not needed & ~sum_of(some):
                return count
    raise AssertionError("there is no cover")


def sum_of(sets: tuple[int, ...]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


@settings(max_examples=60)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_a_cover_has_as_few_sets_as_any(sets: list[int]) -> None:
    needed = sum_of(tuple(sets))
    cover = least_cover(sets, needed)
    assert not needed & ~sum_of(tuple(sets[i] for i in cover.chosen))
    assert cover.is_least
    assert cover.least == fewest(sets, needed)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_a_search_that_is_cut_short_still_covers_and_its_bound_holds(sets: list[int]) -> None:
    needed = sum_of(tuple(sets))
    cover = least_cover(sets, needed, max_steps=1)
    assert not needed & ~sum_of(tuple(sets[i] for i in cover.chosen))
    assert cover.least <= fewest(sets, needed) <= len(cover.chosen)


def test_what_no_set_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match="no set contains what is needed"):
        least_cover([1, 2], 4)


def test_a_search_begins_in_the_middle_and_goes_where_it_knows_least() -> None:
    rows = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    order = search_order(rows)
    assert sorted(place for place, _ in order) == list(range(len(rows)))
    assert [rows[place] for place, _ in order[:4]] == [16, 256, 64, 1], "rows below 16 count little"
    assert [has_neighbour for _, has_neighbour in order] == [False] * 2 + [True] * 7
    assert search_order([]) == []


def test_jobs_with_a_neighbour_get_fewer_trials_and_each_shape_has_its_ladder() -> None:
    wide = [replace(spec(m), workload=independent_pair((m, 256, 256), (2 * m, 256, 256))) for m in (16, 32)]
    items = plan_batch([*(spec(m, trials=60) for m in (1, 8, 64)), *wide])
    assert [item.ladder for item in items] == [0, 0, 0, 1, 2]
    budgets = {item.spec.workload.tile_ops[0].m: item.spec.budget.trials for item in items if item.ladder == 0}
    assert budgets == {8: 60, 1: 20, 64: 60}
    few = plan_batch([spec(m, trials=60) for m in (8, 16)])
    assert [item.spec.budget.trials for item in few] == [60, 20]
    assert [item.spec.budget.trials for item in plan_batch([spec(m, trials=60) for m in (8, 16)], 40)] == [60, 40]
    assert [item.spec.budget.trials for item in plan_batch([spec(m, trials=12) for m in (8, 16)])] == [12, LEAST_TRIALS]
    assert [item.spec.budget.trials for item in plan_batch([spec(m, trials=4) for m in (8, 16)])] == [4, 4]


def candidate(stages: int) -> Candidate:
    return Candidate(plan_kind=PlanKind.FUSED, schedule=schedule(stages))


def measurement(m: int, library_us: float, **times_us: float) -> Measurement:
    """A measurement; `s3=10.0` is the kernel with three stages."""
    options = tuple(
        Option(
            name=kernel_name(candidate(int(name[1:])), workload(m)),
            time_us=time_us,
            speedup=library_us / time_us,
            speedup_ci95=(0.9 * library_us / time_us, 1.1 * library_us / time_us),
        )
        for name, time_us in times_us.items()
    )
    return Measurement(m=m, job_id=f"job-{m}", library_us=library_us, options=options)


def test_a_kernel_that_is_nearly_the_fastest_everywhere_goes_before_one_that_is_the_fastest_somewhere() -> None:
    ladder = make_ladder("pair", [measurement(8, 20.0, s2=10.0, s3=10.05), measurement(16, 20.0, s3=11.0, s4=12.0)])
    (kernel,) = ladder.kernels
    assert kernel.candidate == candidate(3)
    assert (kernel.m_lo, kernel.m_hi, kernel.job_id) == (8, 16, "job-16")
    assert [(rung.m_lo, rung.m_hi, rung.kernel) for rung in ladder.rungs] == [(1, 7, None), (8, 8, 0), (9, 16, 0)]
    assert ladder.rungs[1].loss == pytest.approx(0.005)
    assert ladder.least == 1


def test_beyond_the_slack_two_kernels_are_needed_and_the_library_needs_none() -> None:
    ladder = make_ladder(
        "pair",
        [
            measurement(1, 15.0, s2=14.9),
            measurement(8, 20.0, s2=10.0, s3=10.2),
            measurement(16, 20.0, s3=11.0, s2=12.0),
        ],
    )
    assert [rung.kernel for rung in ladder.rungs] == [None, None, 0, 1]
    first, between, _, _ = ladder.rungs
    assert (first.speedup, first.time_us, first.job_id) == (1.0, 15.0, "job-1")
    assert (between.m_lo, between.m_hi, between.job_id, between.speedup) == (2, 4, None, None)
    assert ladder.least == len(ladder.kernels) == 2


def test_what_lies_between_two_measured_numbers_of_rows_is_a_kernels_where_it_beats_the_library_at_both() -> None:
    for library_below_us, begin in ((11.1, 129), (10.9, 192)):
        ladder = make_ladder("pair", [measurement(128, library_below_us), measurement(192, 15.0, s2=10.9)])
        assert [(rung.m_lo, rung.m_hi) for rung in ladder.rungs if rung.kernel is not None] == [(begin, 192)]


def test_a_kernel_serves_all_rows_between_two_at_which_it_was_measured_and_runs() -> None:
    """In between, it also serves fewer than half of its rows, unless the library may be faster there."""

    def served(*measurements: Measurement) -> list[tuple[int, int, int | None]]:
        return [(rung.m_lo, rung.m_hi, rung.kernel) for rung in make_ladder("pair", measurements).rungs]

    one, eight = measurement(1, 15.0, s2=10.0), measurement(8, 15.0, s2=10.1)
    assert served(one, eight) == [(1, 1, 0), (2, 8, 0)]
    assert served(one, measurement(8, 15.0, s3=10.1, s2=12.0)) == [(1, 1, 0), (2, 4, None), (5, 8, 1)]
    assert served(measurement(1, 10.15, s2=10.0), eight) == [(1, 1, 0), (2, 7, None), (8, 8, 0)]
    assert served(one, measurement(4, 10.0, s2=10.0), measurement(16, 15.0, s2=10.0)) == [
        (1, 1, 0),
        (2, 2, None),
        (3, 4, None),
        (5, 15, None),
        (16, 16, 0),
    ]


def test_the_same_schedule_cut_into_more_tile_rows_is_another_kernel() -> None:
    names = [kernel_name(candidate(2), workload(m)) for m in (9, 16, 17)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("m", [1, 9, 15])
def test_the_kernel_of_16_rows_serves_fewer_with_the_same_source_and_the_same_plan(m: int) -> None:
    """No row is padded, because the launch is given their number."""
    of_16, of_m = (plans_for(workload(rows), GPU, candidate(2)) for rows in (16, m))
    assert [plan.plan.words.tobytes() for plan in of_16] == [plan.plan.words.tobytes() for plan in of_m]
    tiling = schedule(2).tiling
    assert render(workload(16), tiling) == render(workload(m), tiling)
    assert kernel_name(candidate(2), workload(16)) == kernel_name(candidate(2), workload(m))


@pytest.mark.parametrize("measurements", [[], [measurement(8, 1.0), measurement(8, 2.0)]])
def test_a_ladder_of_nothing_or_of_one_number_of_rows_twice_is_an_error(measurements: list[Measurement]) -> None:
    with pytest.raises(ValueError, match="one measurement for each"):
        make_ladder("pair", measurements)


@pytest.mark.parametrize(
    ("counts", "answered", "succeeded", "state"),
    [
        ({JobState.QUEUED: 2}, 0, 0, JobState.QUEUED),
        ({JobState.QUEUED: 1, JobState.SUCCEEDED: 1}, 0, 0, JobState.SEARCHING),
        ({JobState.SEARCHING: 1, JobState.FINALS: 1}, 0, 0, JobState.SEARCHING),
        ({JobState.FINALS: 1, JobState.FAILED: 1}, 0, 0, JobState.FINALS),
        ({JobState.SUCCEEDED: 2}, 0, 0, JobState.FINALS),
        ({JobState.SUCCEEDED: 1, JobState.FAILED: 1}, 1, 1, JobState.SUCCEEDED),
        ({JobState.CANCELLED: 1, JobState.FAILED: 1}, 1, 0, JobState.FAILED),
        ({JobState.CANCELLED: 2}, 1, 0, JobState.CANCELLED),
    ],
)
def test_a_batch_stands_where_its_jobs_and_ladders_say(
    counts: dict[JobState, int], answered: int, succeeded: int, state: JobState
) -> None:
    batch = BatchRecord(
        id="batch-0",
        target_id="h200",
        owner="",
        project="",
        created_at=1.0,
        cancelled_at=None,
        counts=counts,
        num_trials=10,
        num_planned=30,
        search_s=5.0,
        num_ladders=1,
        num_answered=answered,
        num_succeeded=succeeded,
    )
    assert batch.state is state
    left_s = 10.0 + 2.0 * batch.num_open
    assert batch.eta_s(1, 0.0) == (left_s if batch.num_open else None)
    measured = replace(batch, num_finals=2, finals_s=7.0)
    assert measured.eta_s(1, 0.0) == (10.0 + 3.5 * batch.num_open if batch.num_open else None)
    on_many = left_s / batch.num_open if batch.num_open else None
    assert batch.eta_s(100, 0.0) == on_many, "a card takes one job at a time"
    assert batch.eta_s(0, 0.0) is None
    due = replace(batch, deadline_at=20.0).eta_s(1, 17.0)
    assert due == (3.0 + 2.0 * batch.num_open if batch.num_open else None), "finals run after the deadline"
    assert replace(batch, cancelled_at=2.0).state is JobState.CANCELLED


def test_a_kernel_that_takes_its_own_rows_alone_serves_no_others() -> None:
    """One kernel is at 8, 16 and 32 rows; between and below these, it runs only if it accepts fewer rows than its
    own."""
    served = [measurement(m, 100.0, s3=50.0) for m in (8, 16, 32)]
    assert [(rung.m_lo, rung.m_hi) for rung in make_ladder("w", served).rungs if rung.kernel is not None][-1] == (
        17,
        32,
    )
    strict = [
        replace(
            one,
            options=tuple(replace(own, name=replace(own.name, serves_fewer_rows=False)) for own in one.options),
        )
        for one in served
    ]
    rungs = make_ladder("w", strict).rungs
    assert [(rung.m_lo, rung.m_hi) for rung in rungs if rung.kernel is not None] == [(8, 8), (16, 16), (32, 32)]
    assert [(rung.m_lo, rung.m_hi) for rung in rungs if rung.kernel is None] == [(1, 7), (9, 15), (17, 31)]
