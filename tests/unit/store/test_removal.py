"""Deleted jobs are hidden at once and gone after the sweep, and the file is smaller."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from tests.support.builders import measured, spec, trial
from tests.unit.store.test_gc import finished_job
from tuner.core.trial.job import JobState, JobTerms
from tuner.core.trial.records import InspectionKind
from tuner.errors import Conflict, NotFound
from tuner.store import Store
from tuner.store.admin import removal
from tuner.store.admin.checking import check_tables
from tuner.store.admin.removal import expired, mark
from tuner.store.jobs import jobs, keys
from tuner.store.results import bests, packs
from tuner.store.tables.models import Base, DeletedJobRow, ResultKeyRow
from tuner.store.trials import inspections, trials


def num_rows(store: Store) -> dict[str, int]:
    with store.read() as session:
        return {name: session.scalar(select(func.count()).select_from(table)) or 0
                for name, table in Base.metadata.tables.items()}  # fmt: skip


def delete(store: Store, job_id: str, reason: str = "by alice") -> None:
    with store.write() as session:
        mark(session, job_id, 100.0, reason)


def test_a_deleted_job_is_out_of_sight_at_once_and_leaves_no_row(store: Store) -> None:
    before = num_rows(store)
    digest = store.artifacts.put(b"kernel" * 100)
    job_id = finished_job(store, digest)
    with store.write() as session:
        jobs.attach(session, job_id, "alice", JobTerms(), 1.0)
        keys.remember(session, "key", "body", job_id, 1.0)
        inspections.ask(session, job_id, 0, InspectionKind.COUNTERS, None, is_urgent=True, now=1.0)
    delete(store, job_id)
    with store.read() as session:
        with pytest.raises(NotFound, match=r"was deleted at 1970-01-01T00:01:40.* by alice"):
            jobs.get(session, job_id)
        assert jobs.page(session, None, 10, jobs.JobFilter()).items == []
        assert jobs.counts_by_state(session) == {}
        assert inspections.next_pending(session, spec(16).target_id, urgent_only=False) is None
        assert bests.find(session, job_id) is not None  # until its rows are removed, but nothing refers to it
        assert session.scalar(select(func.count()).select_from(ResultKeyRow)) == 0
    swept = store.sweep()
    assert (swept.num_jobs, swept.num_trials, swept.num_files) == (1, 1, 1)
    assert num_rows(store) == before | {DeletedJobRow.__tablename__: 1}
    with pytest.raises(NotFound):
        store.artifacts.get(digest)
    assert store.sweep().num_jobs == 0


@pytest.mark.slow
def test_an_artifact_that_another_result_or_a_pack_names_stays(store: Store) -> None:
    shared, packed = store.artifacts.put(b"shared" * 100), store.artifacts.put(b"packed" * 100)
    first, second, third = finished_job(store, shared), finished_job(store, shared, 32), finished_job(store, packed, 64)
    with store.write() as session:
        packs.insert(session, packed, 600, {"shapes": []}, 5.0)
    for job_id in (first, third):
        delete(store, job_id)
    assert store.sweep().num_files == 0
    assert store.artifacts.get(packed) == b"packed" * 100
    delete(store, second)
    assert store.sweep().num_files == 1
    assert store.collect_garbage(0).num_files == 0


def test_an_open_job_is_not_deleted(store: Store) -> None:
    with store.write() as session:
        job = jobs.insert(session, spec(16), 1.0)
    with pytest.raises(Conflict, match="cancel it before"):
        delete(store, job.id)
    with store.read() as session:
        assert jobs.get(session, job.id).state is JobState.QUEUED


@pytest.mark.slow
def test_a_sweep_that_is_cut_goes_on_and_the_tables_agree_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "_SLICE", 10)
    with store.write() as session:
        job = jobs.insert(session, spec(16), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number in range(30):
            trials.record(session, job.id, trial(number, measured(5.0)), 0.0)
    with store.write() as session:
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    delete(store, job.id)
    answers = iter([True] * 9)
    store.sweep(lambda: next(answers, False))
    counts = num_rows(store)
    assert (0 < counts["trials"] < 30, counts["events"], counts["jobs"]) == (True, 0, 1)
    assert "0 jobs, 0 trials" in check_tables(store.engine)[1]
    store.sweep()
    assert num_rows(store)["trials"] == 0
    if store.engine.dialect.name == "sqlite":
        with store.read() as session:
            assert session.execute(text("pragma freelist_count")).scalar() == 0, "its pages are released to the disk"


def test_retention_keeps_what_is_open_young_or_the_best_of_its_problem(store: Store) -> None:
    same = [finished_job(store, None) for _ in range(3)]
    other = finished_job(store, None, 32)
    with store.write() as session:
        waiting = jobs.insert(session, spec(64), 0.0).id
    with store.read() as session:
        assert expired(session, before=3.0, num_kept=None) == []
        assert expired(session, before=5.0, num_kept=None) == [*same, other]
        assert expired(session, before=None, num_kept=1) == same
        assert expired(session, before=None, num_kept=0, keeps_best=True) == same[:2]
        assert waiting not in expired(session, before=1e12, num_kept=0)


# In CI, another test counts pages that are not released.
@pytest.mark.soak
def test_the_file_shrinks_beside_readers_and_writers(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    path = tmp_path / "data" / "tuner.db"
    try:
        with store.write() as session:
            job = jobs.insert(session, spec(16), 1.0)
            jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
            for number in range(400):
                trials.record(session, job.id, trial(number, measured(5.0)), 0.0)
            jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
        with store.engine.connect() as connection:
            connection.execute(text("pragma wal_checkpoint(truncate)"))
        before = path.stat().st_size
        delete(store, job.id)
        with store.read() as session:
            assert session.execute(text("pragma auto_vacuum")).scalar() == 2
        store.sweep()
        assert path.stat().st_size < before / 2, "the file is nearly as large as before"
    finally:
        store.close()
