from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

import tuner
from tests.support.builders import BEST, schedule, spec
from tuner.core.schedule.candidate import LIBRARY, Candidate, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import FinalRow
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.admin import migrate
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.tables.models import Base


def tables(store: Store) -> set[str]:
    return set(inspect(store.engine).get_table_names()) - {"alembic_version"}


def test_a_new_database_has_the_tables_of_the_models(store: Store) -> None:
    assert tables(store) == set(Base.metadata.tables)
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


@pytest.mark.slow
def test_every_migration_goes_down_and_up_again(store: Store) -> None:
    migrate.downgrade(store.engine)
    assert tables(store) == set()
    migrate.upgrade(store.engine)
    assert tables(store) == set(Base.metadata.tables)


def test_what_is_kept_is_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
    store.close()
    store = Store.open(tmp_path)
    with store.read() as session:
        assert jobs.get(session, job.id) == job
    store.close()


def test_a_database_of_a_newer_version_is_refused_and_left_unlocked(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = 'from-the-future'"))
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"newer version: .* from-the-future, .* up to \d+; install that version"):
            Store.open(tmp_path)


def test_a_database_says_the_revision_of_its_tables(store: Store) -> None:
    assert migrate.revision_of(store.engine) == max(path.name[:4] for path in migrate.migrations_dir().glob("*/0*.py"))
    migrate.downgrade(store.engine, "0001")
    assert migrate.revision_of(store.engine) == "0001"
    migrate.downgrade(store.engine)
    assert migrate.revision_of(store.engine) is None


def test_a_file_that_is_no_database_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tuner.db").write_bytes(b"not a database, but long enough to look like a file" * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(tmp_path)


def test_the_migrations_are_found_inside_a_wheel_and_beside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (migrate.migrations_dir() / "env.py").is_file()
    package = tmp_path / "site-packages" / "tuner"
    (package / "migrations").mkdir(parents=True)
    monkeypatch.setattr(tuner, "__file__", str(package / "__init__.py"))
    assert migrate.migrations_dir() == package / "migrations"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_in_wal_mode(store: Store) -> None:
    with store.engine.connect() as connection:
        assert connection.execute(text("pragma journal_mode")).scalar() == "wal"


@pytest.mark.slow
def test_results_of_an_older_database_are_found_as_new_ones_are(store: Store) -> None:
    with store.write() as session:
        for m, target_id in ((16, "h200"), (48, "simulated:h200")):
            job = jobs.insert(session, spec(m, target_id=target_id), 1.0)
            bests.insert(session, replace(BEST, job_id=job.id))
    query = text("select * from result_keys order by seq")
    with store.engine.connect() as connection:
        before = connection.execute(query).all()
    assert len(before) == 2
    migrate.downgrade(store.engine, "0004")
    migrate.upgrade(store.engine)
    with store.engine.connect() as connection:
        assert connection.execute(query).all() == before


@pytest.mark.slow
def test_a_job_of_an_older_database_shows_the_times_of_its_finals(store: Store) -> None:
    candidate = Candidate(plan_kind=PlanKind.LIBRARY, schedule=None)
    row = FinalRow(candidate=candidate, trial_number=0, time_us=70.0, spread=0.0, speedup=1.0, speedup_ci95=None)
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        bests.insert(session, replace(BEST, job_id=job.id, finals=(row,)))
    migrate.downgrade(store.engine, "0007")
    with store.write() as session:
        session.execute(text("update jobs set library_us = 75.0, best_us = 60.0"))
    migrate.upgrade(store.engine)
    with store.read() as session:
        found = jobs.get(session, job.id)
    assert (found.library_us, found.best_us) == (70.0, 60.0)


def test_a_job_of_an_older_database_shows_the_speed_up_of_its_finals_or_else_of_its_times(store: Store) -> None:
    rows = [
        FinalRow(candidate=one, trial_number=n, time_us=us, spread=0.0, speedup=speedup, speedup_ci95=None)
        for n, (one, us, speedup) in enumerate([(LIBRARY, 70.0, 1.0), (fused(schedule()), 50.0, 1.37)])
    ]
    with store.write() as session:
        done, open_one, new = (jobs.insert(session, spec(m), 1.0) for m in (16, 32, 64))
        bests.insert(session, replace(BEST, job_id=done.id, finals=tuple(rows)))
    migrate.downgrade(store.engine, "0024")
    with store.write() as session:
        query = "update jobs set library_us = 90.0, best_us = 60.0 where id = :id"
        session.execute(text(query), {"id": open_one.id})
    migrate.upgrade(store.engine)
    with store.read() as session:
        assert [jobs.get(session, job.id).best_speedup for job in (done, open_one, new)] == [1.37, 1.5, None]
