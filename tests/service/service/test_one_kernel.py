"""A result describes one kernel: its files, time and gain stay together wherever they are shown or shipped."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import convs
from tests.support.builders import BEST, TARGET, schedule, spec
from tests.support.packs import make
from tuner.api.listings.results_page import _of_job
from tuner.client.terminal.pack_tables import lines_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.ladder import make_ladder
from tuner.core.trial.records import Best, FinalRow, JobRecord, Verdict, kernel_row
from tuner.packs.ladder import make_entries
from tuner.packs.read import read_pack
from tuner.packs.shapes import shape_of
from tuner.packs.write import pack_bytes
from tuner.service.ladders.maker import measurement_of
from tuner.service.results.pack_maker import _as_found, _behind_the_library
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests


def row(kind: PlanKind, time_us: float, energy_mj: float | None = None, number: int = 0) -> FinalRow:
    found = Candidate(plan_kind=kind, schedule=schedule(2 + number) if kind.is_ours else None)
    return FinalRow(
        candidate=found, trial_number=number, time_us=time_us, spread=0.01, speedup=100 / time_us, speedup_ci95=None,
        energy_mj=energy_mj,
    )  # fmt: skip


ROWS = (
    row(PlanKind.LIBRARY, 100.0, 9.0),
    row(PlanKind.TWO_LAUNCHES, 81.2, 5.0, 1),
    row(PlanKind.FUSED, 80.0, 7.0, 2),
    row(PlanKind.FUSED_PDL, 80.1, 8.0, 3),
)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Store, JobRecord]:
    store = Store.open(tmp_path / "data")
    with store.write() as session:
        job = jobs.insert(session, spec(target_id=TARGET), 1.0)
    return store, job


@pytest.mark.parametrize("winner", [PlanKind.TWO_LAUNCHES, PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_whoever_shows_or_ships_the_winner_takes_its_row(stored: tuple[Store, JobRecord], winner: PlanKind) -> None:
    store, job = stored
    best = replace(BEST, job_id=job.id, verdict=Verdict.TIE, winner=winner, finals=ROWS, artifact_digest=None)
    expected = next(one for one in ROWS if one.candidate.plan_kind is winner)
    assert kernel_row(ROWS, winner, None) is expected

    known = _of_job(job, best)
    assert (known.winner, known.ours, known.ours_us, known.speedup) == (
        winner,
        winner,
        expected.time_us,
        expected.speedup,
    )

    packed = _as_found(store, job.spec.workload, job, best)
    assert (packed.time_us, packed.speedup) == (expected.time_us, expected.speedup)

    measurement = measurement_of(job, best)
    assert measurement is not None
    ladder = make_ladder("pair", [measurement])
    assert [kernel.candidate for kernel in ladder.kernels] == [expected.candidate]
    assert ladder.rungs[-1].time_us == expected.time_us

    with store.write() as session:
        bests.insert(session, best)
    with store.read() as session:
        listed = jobs.get(session, job.id)
    assert (listed.best_us, listed.best_speedup) == (expected.time_us, expected.speedup)
    assert JobState(listed.state) is JobState.QUEUED
    store.close()


@pytest.mark.parametrize("winner", [PlanKind.FUSED_PDL, PlanKind.TWO_STREAMS])
def test_a_chain_that_is_fastest_on_two_streams_is_the_librarys_in_a_pack(
    stored: tuple[Store, JobRecord], winner: PlanKind
) -> None:
    """A program runs on one stream; the pack is made nevertheless."""
    store, job = stored
    workload, tiling = convs.CASES["a stride, a shortcut"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in make(winner, tiling, workload=workload).kernel.files.items():
            archive.writestr(name, content)
    digest = store.artifacts.put(packed.getvalue())
    rows = (ROWS[0], row(winner, 80.0, number=1))
    best = replace(BEST, job_id=job.id, verdict=Verdict.TIE, winner=winner, finals=rows, artifact_digest=digest)
    found = _as_found(store, workload, job, best)
    assert (found.kernel is None) is (winner is PlanKind.TWO_STREAMS)
    if winner is PlanKind.TWO_STREAMS:
        assert _behind_the_library(store, workload, job, replace(best, winner=PlanKind.LIBRARY)).kernel is None
    (entry,) = make_entries([(shape_of(workload.to_json()), found)], min_gain=1.0)
    content = pack_bytes([entry], provenance={"min_gain": 1.0}, sign=None)
    shown = "ours is fastest on two streams, and a program runs on one"
    assert (shown in lines_of(read_pack(content))[0].runs) is (winner is PlanKind.TWO_STREAMS)
    store.close()


def test_where_the_library_won_a_ladder_runs_it_and_a_page_names_the_kind_of_its_time(
    stored: tuple[Store, JobRecord],
) -> None:
    store, job = stored
    best: Best = replace(BEST, job_id=job.id, verdict=Verdict.TIE, winner=PlanKind.LIBRARY, finals=ROWS)
    known = _of_job(job, best)
    assert (known.winner, known.ours, known.ours_us) == (PlanKind.LIBRARY, PlanKind.FUSED, 80.0)
    measurement = measurement_of(job, best)
    assert measurement is not None
    assert make_ladder("pair", [measurement]).kernels == ()
    store.close()


def test_where_least_energy_is_asked_for_that_kernel_is_the_one() -> None:
    assert kernel_row(ROWS, PlanKind.FUSED, 5.0) is ROWS[1]
    assert kernel_row(ROWS, PlanKind.FUSED, 0.5) is ROWS[2]
    assert kernel_row(ROWS[:1], PlanKind.LIBRARY, None) is None


@pytest.mark.parametrize(("others", "expected"), [((80.1,), PlanKind.FUSED), ((101.0,), None), ((), None)])
def test_a_pack_has_no_kernel_on_two_streams_but_of_a_pair(
    stored: tuple[Store, JobRecord], others: tuple[float, ...], expected: PlanKind | None
) -> None:
    store, job = stored
    ours = [row(PlanKind.FUSED, time_us, number=2) for time_us in others]
    finals = (ROWS[0], row(PlanKind.TWO_STREAMS, 79.0, number=1), *ours)
    best = replace(BEST, job_id=job.id, winner=PlanKind.TWO_STREAMS, finals=finals)

    def kinds(workload: Workload) -> list[PlanKind]:
        measurement = measurement_of(replace(job, spec=replace(job.spec, workload=workload)), best)
        assert measurement is not None
        return [kernel.candidate.plan_kind for kernel in make_ladder("pair", [measurement]).kernels]

    assert kinds(job.spec.workload) == [PlanKind.TWO_STREAMS]
    assert kinds(convs.workload(convs.conv("c1"), convs.conv("c2", "c1", channels=24))) == (
        [expected] if expected else []
    )
    store.close()
