"""Which schedules of other jobs a ladder's job has to try after all searches, in a real database with inserted
trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.service.service.helpers import evaluator
from tests.support.builders import measured, spec, trial
from tests.support.spaces import any_space_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Granularity, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.space import Space
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.ladders.batch import MOST_SHARED
from tuner.core.trial.records import JobRecord
from tuner.dispatch import LocalDispatcher
from tuner.search.guesses.seeds import by_slice
from tuner.service import Service
from tuner.service.ladders.ladder_jobs import NUM_REORDERED, LadderJobs, new_kernels
from tuner.store import Store
from tuner.store.jobs import batches, jobs
from tuner.store.trials import trials

BY_ROWS = trial(0, measured(50.0)).candidate
FASTEST = replace(BY_ROWS, plan_kind=PlanKind.FUSED_PDL)


def ordered(width: int) -> Ordering:
    """The usual ordering, with consumers that wait for chunks of `width` tiles."""
    assert BY_ROWS.schedule
    return replace(BY_ROWS.schedule.ordering, granularity=Granularity.CHUNK, sync_width=width)


def in_order(candidate: Candidate, ordering: Ordering, stages: int) -> Candidate:
    assert candidate.schedule
    tiling = replace(candidate.schedule.tiling, num_stages=stages)
    return replace(candidate, schedule=candidate.schedule.but(tiling=tiling, ordering=ordering))


@pytest.fixture
def ladder(tmp_path: Path) -> Iterator[tuple[Store, list[JobRecord]]]:
    """Three jobs of 16, 32 and 64 rows that no server runs."""
    store = Store.open(tmp_path / "data")
    with closing(Service(store, LocalDispatcher([evaluator()]))) as service:
        batch, _ = service.batches.submit([spec(m) for m in (16, 32, 64)])
        with store.read() as session:
            found = [job for job, _ in batches.jobs_of(session, batch.id)]
        yield store, sorted(found, key=lambda job: job.spec.workload.tile_ops[0].m)


def lay(store: Store, job: JobRecord, *candidates: tuple[Candidate, float]) -> list[Trial]:
    """Inserts a trial of each candidate, with its time in µs."""
    laid = [
        replace(trial(number, measured(time_us)), candidate=candidate)
        for number, (candidate, time_us) in enumerate(candidates)
    ]
    with store.write() as session:
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for one in laid:
            trials.record(session, job.id, one, 1.0)
    return laid


def test_a_job_tries_its_fastest_kernel_in_the_nearest_orders_and_then_the_kernels_of_others(
    ladder: tuple[Store, list[JobRecord]],
) -> None:
    store, (near, job, far) = ladder
    of_near, of_far = in_order(BY_ROWS, ordered(2), stages=3), in_order(FASTEST, ordered(4), stages=4)
    apart = in_order(replace(BY_ROWS, plan_kind=PlanKind.TWO_LAUNCHES), BY_ROWS.schedule.ordering, stages=3)  # type: ignore[union-attr]
    lay(store, near, (of_near, 10.0), (apart, 11.0))
    lay(store, far, (of_far, 10.0), (BY_ROWS, 12.0))
    past = lay(store, job, (BY_ROWS, 30.0), (FASTEST, 20.0))
    space = any_space_of(job.spec.workload, parse_target(job.spec.target_id).gpu)
    given = LadderJobs(store).to_try(job, space, past)
    own = [replace(FASTEST, schedule=FASTEST.schedule.but(ordering=order)) for order in (ordered(2), ordered(4))]  # type: ignore[arg-type]
    assert set(given[:2]) == set(own), "its own fastest kernel, with its own order and with the other's"
    deep = [one for one in new_kernels(space, past) if one not in (FASTEST, BY_ROWS)]
    assert set(given[2:]) == {*deep, of_near, apart, of_far}, "candidates that it has tried itself are not tried again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fused"),
    [
        (PlanKind.FUSED, PlanKind.FUSED),
        (PlanKind.FUSED_PDL, PlanKind.FUSED_PDL),
        (PlanKind.TWO_LAUNCHES, PlanKind.FUSED),
        (PlanKind.TWO_LAUNCHES_PDL, PlanKind.FUSED_PDL),
    ],
)
def test_the_fastest_kernels_of_all_and_of_the_fused_are_tried_in_one_launch_with_waits_slice_by_slice(
    ladder: tuple[Store, list[JobRecord]], kind: PlanKind, fused: PlanKind
) -> None:
    store, (near, job, _) = ladder
    space = any_space_of(job.spec.workload, parse_target(job.spec.target_id).gpu)
    assert isinstance(space, Space)
    first, second = (one for one in space.guesses if one.engine is Engine.WGMMA and not one.split_k and not one.swap_ab)
    plain = [Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(), Raster()))) for tiling in (first, second)]
    lay(store, near, (BY_ROWS, 10.0))
    fastest = (Candidate(plan_kind=kind, schedule=plain[0]), 20.0)
    past = lay(store, job, (Candidate(plan_kind=PlanKind.FUSED, schedule=plain[1]), 30.0), fastest)
    given = LadderJobs(store).to_try(job, space, past)
    sliced = [one for schedule in plain for one in by_slice(space, schedule)]
    assert len(sliced) == 2
    expected = [Candidate(plan_kind=fused, schedule=sliced[0])]
    if not kind.is_fused:
        expected.append(Candidate(plan_kind=PlanKind.FUSED, schedule=sliced[1]))
    assert list(given[: len(expected)]) == expected
    assert BY_ROWS in given


def test_the_fastest_kernels_are_tried_with_rings_of_weights_as_deep_as_fits(
    ladder: tuple[Store, list[JobRecord]],
) -> None:
    store, (near, job, _) = ladder
    lay(store, near, (BY_ROWS, 10.0))
    space = any_space_of(job.spec.workload, parse_target(job.spec.target_id).gpu)
    assert isinstance(space, Space)
    first, second = (one for one in space.guesses if one.engine is Engine.WGMMA and not one.split_k and not one.swap_ab)
    full, shallow = (
        Schedule.of(tiling=one, ordering=Ordering(rasters=(Raster(), Raster()))) for one in (first, second)
    )
    shallow = shallow.but(tiling=replace(shallow.tiling, num_stages=2))
    past = lay(
        store,
        job,
        (Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=shallow), 20.0),
        (Candidate(plan_kind=PlanKind.FUSED, schedule=full), 30.0),
    )
    given = LadderJobs(store).to_try(job, space, past)
    (deep,) = [one for one in given if one.plan_kind is PlanKind.TWO_LAUNCHES_PDL]
    assert deep.schedule is not None
    assert deep.schedule.but(tiling=shallow.tiling) == shallow
    more = replace(deep.schedule.tiling, num_stages=deep.schedule.tiling.num_stages + 1)
    assert deep.schedule.tiling.num_stages > 2
    assert tiling_problem(space.workload, space.gpu, more) is not None
    assert not [one for one in given if one.schedule == full], "a full result is not returned again"


def test_no_more_than_a_few_orders_are_tried_and_nothing_twice(ladder: tuple[Store, list[JobRecord]]) -> None:
    store, (near, job, far) = ladder
    lay(store, near, *((in_order(BY_ROWS, ordered(1 + i), stages=2 + i), 10.0 + i) for i in range(2)))
    lay(store, far, *((in_order(BY_ROWS, ordered(1 + i), stages=2), 10.0 + i) for i in range(2)))
    past = lay(store, job, (BY_ROWS, 30.0))
    given = LadderJobs(store).to_try(job, any_space_of(job.spec.workload, parse_target(job.spec.target_id).gpu), past)
    assert len(given) == len(set(given)) <= MOST_SHARED
    own_tiling = BY_ROWS.schedule.tiling  # type: ignore[union-attr]
    assert 0 < sum(one.schedule is not None and one.schedule.tiling == own_tiling for one in given) <= NUM_REORDERED
