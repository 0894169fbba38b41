from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, text

from tests.support.builders import spec
from tests.support.lanes import one_in, soaked
from tests.support.postgres import PostgreSQL
from tests.unit.store.frozen import FOLDER, fill, frozen_spec, thaw
from tuner.cli import main
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import Failed, Measured, Rejected
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.access import ended_sessions
from tuner.store.admin import migrate
from tuner.store.admin.backups import back_up, restore
from tuner.store.engine.engines import make_engine
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.trials import trials


def rows_of(engine: Engine, tmp_path: Path) -> dict[str, list[Any]]:
    """All rows of all tables, as in a backup."""
    back_up(engine, tmp_path / "rows.zip")
    with zipfile.ZipFile(tmp_path / "rows.zip") as archive:
        return {
            name: sorted(archive.read(name).decode().splitlines())
            for name in archive.namelist()
            if name.endswith(".jsonl")
        }


@pytest.mark.slow
@pytest.mark.parametrize("path", one_in(4, sorted(FOLDER.glob("*.db.gz"))), ids=lambda path: path.name)
def test_a_database_of_an_older_revision_is_brought_to_this_one_after_a_backup(path: Path, tmp_path: Path) -> None:
    thaw(path, tmp_path / "tuner.db")
    frozen = make_engine(tmp_path, None, 5.0)
    revision = migrate.revision_of(frozen)
    frozen.dispose()
    store = Store.open(tmp_path)
    with store.read() as session:
        done, waiting = reversed(jobs.page(session, None, 10, jobs.JobFilter()).items)
        history, best = trials.history(session, done.id), bests.find(session, done.id)
    assert (done.state, waiting.state) == (JobState.SUCCEEDED, JobState.QUEUED)
    assert (done.spec, waiting.spec) == (frozen_spec(16), frozen_spec(32))
    assert [type(one.outcome) for one in history] == [Measured, Measured, Rejected, Failed]
    assert best is not None
    assert best.finals[0].time_us == 80.0
    assert revision == path.name.removesuffix(".db.gz")
    had_it = revision >= "0026"  # the table, and this session in it
    for is_new in (not had_it, False):
        with store.write() as session:
            assert ended_sessions.end(session, "a word", 1.0) is is_new
    backups = list((tmp_path / "backups").glob("*.zip"))
    assert len(backups) == (revision != migrate.head())
    store.close()


def test_each_revision_has_its_frozen_database() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{revision}.db.gz" for revision in migrate.revisions()}


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", *soaked("postgresql")], indirect=True)
def test_what_was_there_before_an_upgrade_is_in_a_backup(store: Store, tmp_path: Path) -> None:
    fill(store)
    migrate.downgrade(store.engine, "0006")
    before = rows_of(store.engine, tmp_path)
    url, directory = store.engine.url.render_as_string(hide_password=False), store.directory
    store.close()
    Store.open(directory, None if url.startswith("sqlite") else url).close()
    (backup,) = (directory / "backups").iterdir()
    assert backup.name.startswith(f"0006-before-{migrate.head()}-")
    with zipfile.ZipFile(backup) as archive:
        assert json.loads(archive.read("backup.json"))["revision"] == "0006"
        assert {name: sorted(archive.read(name).decode().splitlines()) for name in before} == before
    Store.open(directory, None if url.startswith("sqlite") else url).close()
    assert list((directory / "backups").iterdir()) == [backup], "nothing is changed, so nothing is backed up"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
def test_a_backup_is_restored_into_either_database(
    store: Store, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    fill(store)
    back_up(store.engine, tmp_path / "backup.zip")
    server: PostgreSQL = request.getfixturevalue("server")
    other = tmp_path / "other"
    other.mkdir()
    engine = make_engine(other, None if target == "sqlite" else server.database(), 5.0)
    counts = restore(engine, tmp_path / "backup.zip")
    assert counts["trials"] == 4
    assert rows_of(engine, tmp_path) == rows_of(store.engine, tmp_path)
    with pytest.raises(StoreError, match="is not empty"):
        restore(engine, tmp_path / "backup.zip")
    with engine.begin() as connection:  # the next row gets its own number
        connection.execute(text("insert into events (job_id, kind, at, data) select id, 'state', 1.0, '{}' from jobs"))
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", *soaked("postgresql")], indirect=True)
def test_a_damaged_backup_is_refused_and_leaves_the_database_empty(tmp_path: Path, store: Store) -> None:
    fill(store)
    back_up(store.engine, tmp_path / "good.zip")
    with zipfile.ZipFile(tmp_path / "good.zip") as good, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name in good.namelist():
            lines = good.read(name)
            bad.writestr(name, lines.partition(b"\n")[2] if name == "trials.jsonl" else lines)
    (tmp_path / "no.zip").write_bytes(b"no zip")
    engine = make_engine(tmp_path, None, 5.0)
    for name, why in (("bad.zip", "is damaged"), ("no.zip", "cannot be restored"), ("absent.zip", "cannot be")):
        with pytest.raises(StoreError, match=why):
            restore(engine, tmp_path / name)
    assert restore(engine, tmp_path / "good.zip")["jobs"] == 2
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", *soaked("postgresql")], indirect=True)
@pytest.mark.parametrize(
    ("changes", "words"),
    one_in(
        3,
        [
            ({"backup.json": None}, "has no readable backup.json"),
            ({"backup.json": b"{"}, "has no readable backup.json"),
            ({"backup.json": b"[]"}, "has no format in its backup.json"),
            ({"backup.json": b'{"format": 1, "revision": [], "rows": {}}'}, "has no revision in its backup.json"),
            ({"backup.json": b'{"format": 1, "revision": "0027", "rows": 5}'}, "has no rows in its backup.json"),
            ({"trials.jsonl": None}, "is damaged: it has no trials.jsonl"),
            ({"trials.jsonl": b"{"}, "is damaged: line 1 of trials.jsonl is not a row of that table"),
            ({"trials.jsonl": b"[]"}, "is damaged: line 1 of trials.jsonl is not a row of that table"),
            ({"trials.jsonl": b"\xff"}, "is damaged: line 1 of trials.jsonl is not a row of that table"),
        ],
    ),
)
def test_what_is_wrong_in_a_damaged_backup_is_named(
    tmp_path: Path, store: Store, changes: dict[str, bytes | None], words: str
) -> None:
    fill(store)
    back_up(store.engine, tmp_path / "good.zip")
    with zipfile.ZipFile(tmp_path / "good.zip") as good:
        files: dict[str, bytes | None] = {name: good.read(name) for name in good.namelist()}
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name, content in {**files, **changes}.items():
            if content is not None:
                bad.writestr(name, content)
    (tmp_path / "other").mkdir()
    engine = make_engine(tmp_path / "other", None, 5.0)
    with pytest.raises(StoreError) as refused:
        restore(engine, tmp_path / "bad.zip")
    assert str(refused.value) == f"{tmp_path / 'bad.zip'} {words}; pass a file that `tuner db backup` wrote"
    engine.dispose()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["db", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_commands_check_back_up_restore_delete_and_prune(tmp_path: Path) -> None:
    data, again = str(tmp_path / "data"), str(tmp_path / "again")
    store = Store.open(tmp_path / "data")
    done, waiting = fill(store)
    refused = CliRunner().invoke(main, ["db", "upgrade", "--data", data])
    assert "is in use by another server" in refused.output
    assert "2 jobs, 4 trials: the counts agree" in run("check", "--data", data)
    assert "has 2 jobs and 4 trials" in run("backup", str(tmp_path / "b.zip"), "--data", data)
    store.close()
    assert "restored 2 jobs and 4 trials" in run("restore", str(tmp_path / "b.zip"), "--data", again)
    assert f"revision {migrate.head()}" in run("upgrade", "--data", again)
    refused = CliRunner().invoke(main, ["db", "delete", waiting, "--data", data])
    assert f"{waiting} has the state queued; cancel it before deleting it" in refused.output
    size = (tmp_path / "data" / "tuner.db").stat().st_size
    assert "deleted 1 job and 4 trials" in run("delete", done, "--data", data)
    assert (tmp_path / "data" / "tuner.db").stat().st_size <= size
    assert "1 job, 0 trials" in run("check", "--data", data)
    assert "deleted 0 jobs" in run("prune", "--keep", "1", "--data", again)
    assert "deleted 1 job and 4 trials" in run("prune", "--days", "1", "--data", again)


@pytest.mark.slow
def test_deleting_jobs_makes_the_file_smaller(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    with store.write() as session:
        for number in range(60):
            job = jobs.insert(session, spec(16 + number), float(number))
            jobs.set_state(session, job.id, JobState.CANCELLED, float(number), "x" * 20_000)
    store.close()
    run("check", "--data", str(tmp_path / "data"))
    before = (tmp_path / "data" / "tuner.db").stat().st_size
    assert "deleted 55 jobs" in run("prune", "--keep", "5", "--data", str(tmp_path / "data"))
    assert (tmp_path / "data" / "tuner.db").stat().st_size < before / 3
