"""The large store for timing pages: the store with copied rows is valid, and can be served."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.cpu import full_store
from benchmarks.cpu.best import serving
from tuner.store import Store

NUM_JOBS, TRIALS_EACH, LARGE_JOB, RECORDED = 5, 7, 60, 20


@pytest.mark.soak
def test_every_job_has_its_trials_the_tables_their_indexes_and_a_server_answers_all_that_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is so small that it is filled in a second."""
    for name in ("NUM_JOBS", "TRIALS_EACH", "LARGE_JOB", "RECORDED"):
        monkeypatch.setattr(full_store, name, globals()[name])
    store = full_store.fill(tmp_path / "data")
    Store.open(tmp_path / "new").close()
    with (
        closing(sqlite3.connect(tmp_path / "data" / "tuner.db")) as filled,
        closing(sqlite3.connect(tmp_path / "new" / "tuner.db")) as new,
    ):
        counts = dict(filled.execute("select job_id, count(*) from trials group by job_id").fetchall())
        indexes = "select name from sqlite_master where type = 'index' order by name"
        assert filled.execute(indexes).fetchall() == new.execute(indexes).fetchall()
        assert filled.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert filled.execute("pragma foreign_key_check").fetchall() == []
    assert counts.pop(store["large"]) == LARGE_JOB
    assert counts.pop(store["ordinary"]) == TRIALS_EACH
    assert list(counts.values()) == [TRIALS_EACH] * (NUM_JOBS - 1)
    with serving(tmp_path / "data") as (url, pid):
        rows = full_store.ask_all(url, pid, store, 1, "idle")
    assert [row["asks"] for row in rows] == [1] * 9
    assert all(row["value"] > 0 for row in rows)
