from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.builders import measured, spec, trial
from tests.support.queries import plans_of, whole_tables
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Best, Verdict
from tuner.errors import InvalidInput, NotFound
from tuner.store import Store
from tuner.store.admin import gc
from tuner.store.jobs import jobs
from tuner.store.results import bests, packs
from tuner.store.results.artifacts import register
from tuner.store.trials import trials


def finished_job(store: Store, digest: str | None, m: int = 16) -> str:
    with store.write() as session:
        job = jobs.insert(session, spec(m), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        trials.record(session, job.id, trial(0, measured(5.0)), 1.0)
        jobs.set_state(session, job.id, JobState.FINALS, 3.0)
        if digest:
            register(session, digest, 100, 3.5)
        bests.insert(
            session,
            Best(
                job_id=job.id,
                verdict=Verdict.TIE,
                winner=PlanKind.LIBRARY,
                tie_band=0.01,
                procedure=None,
                finals=(),
                reference_us=1.0,
                artifact_digest=digest,
                environment=Environment(gpu_name="simulated", simulated=True),
            ),
        )
        jobs.set_state(session, job.id, JobState.SUCCEEDED, 4.0)
    return job.id


def build(store: Store, name: str, size_bytes: int, at: float) -> Path:
    path = store.build_cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    os.utime(path, (at, at))
    return path


def test_the_oldest_go_first_and_what_fits_stays(store: Store) -> None:
    old, young = build(store, "old.cubin", 1000, 10.0), build(store, "young.cubin", 1000, 20.0)
    freed = store.collect_garbage(1500)
    assert (freed.num_files, freed.freed_bytes, freed.kept_bytes) == (1, 1000, 1000)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_pack_stays_since_lock_files_name_it(store: Store) -> None:
    digest = store.artifacts.put(b"pack" * 100)
    for at in (1.0, 2.0):  # if it is made again, it is the existing file
        with store.write() as session:
            packs.insert(session, digest, 400, {"shapes": []}, at)
    assert store.collect_garbage(0).num_files == 0
    assert store.artifacts.get(digest) == b"pack" * 100


@pytest.mark.slow
def test_an_artifact_that_a_result_names_stays_and_another_goes(store: Store) -> None:
    named, other = store.artifacts.put(b"named" * 100), store.artifacts.put(b"other" * 100)
    job_id = finished_job(store, named)
    assert store.collect_garbage(0).num_files == 1
    assert store.artifacts.get(named) == b"named" * 100
    with pytest.raises(NotFound, match="tuner gc"):
        store.artifacts.get(other)
    with store.read() as session:
        assert bests.find(session, job_id) is not None


def test_raw_samples_go_but_their_trials_stay(store: Store) -> None:
    job_id = finished_job(store, None)
    freed = store.collect_garbage(0)
    assert (freed.num_jobs, freed.freed_bytes, freed.kept_bytes) == (1, 4 + 2 * 24, 0)
    with store.read() as session:
        kept = trials.history(session, job_id)
    assert kept == [trial(0, measured(5.0, rounds=()))]


def test_samples_of_an_open_job_stay(store: Store) -> None:
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        trials.record(session, job.id, trial(0, measured(5.0)), 1.0)
    assert store.collect_garbage(0).kept_bytes == 4 + 2 * 24


def test_the_same_content_is_kept_once_and_nothing_half_written_remains(store: Store) -> None:
    assert store.artifacts.put(b"zip") == store.artifacts.put(b"zip")
    assert len([path for path in store.artifacts.root.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_digest_is_refused(store: Store, digest: str) -> None:
    with pytest.raises(InvalidInput, match="64 lower-case hex digits"):
        store.artifacts.get(digest)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # reads SQLite's description of a query plan
def test_samples_go_in_slices_between_which_others_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "_SLICE", 10)
    job_id = ended_job_of(store, 95)
    before = store.commits.num_writes
    with plans_of(store.engine) as steps:
        freed = store.collect_garbage(0)
    assert store.commits.num_writes - before >= 10, "one session held the writer for too much"
    assert [step for step in whole_tables(steps) if step.startswith("SCAN trials")] == []
    assert (freed.num_jobs, freed.freed_bytes, freed.kept_bytes) == (1, 95 * (4 + 2 * 24), 0)
    with store.read() as session:
        assert [one.outcome for one in trials.history(session, job_id)] == [measured(5.0, rounds=())] * 95
    assert store.collect_garbage(0).num_jobs == 0


def test_a_collection_that_is_cut_off_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "_SLICE", 10)
    ended_job_of(store, 30)
    monkeypatch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.collect_garbage(0)
    monkeypatch.undo()
    freed = store.collect_garbage(0)
    assert (freed.num_jobs, freed.freed_bytes, freed.kept_bytes) == (1, 20 * (4 + 2 * 24), 0)


def ended_job_of(store: Store, num_trials: int) -> str:
    """The id of a cancelled job with measured trials and samples."""
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number in range(num_trials):
            trials.record(session, job.id, trial(number, measured(5.0)), 1.0)
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    return job.id
