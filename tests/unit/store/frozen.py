"""Databases of every revision, as written at the time; each later version must migrate them.

python -m tests.unit.store.frozen    writes that of this revision: once, with its migration.
"""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.support.builders import BEST, measured, schedule, spec, trial
from tuner.core.access.caller import LOCAL, Role
from tuner.core.access.quota import Quota, QuotaScope
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.trial.job import JobSpec, JobState, JobTerms
from tuner.core.trial.outcome import Failed, FailureKind, Rejected, Stage
from tuner.core.trial.records import FinalRow, InspectionKind
from tuner.core.trial.reports.inspection import no_counters
from tuner.store import Store
from tuner.store.access import audit, ended_sessions, quotas, tokens
from tuner.store.admin import migrate
from tuner.store.jobs import jobs, keys
from tuner.store.results import bests
from tuner.store.trials import inspections, trials

FOLDER = Path(__file__).parent / "frozen_databases"


def frozen_spec(m: int) -> JobSpec:
    """The spec of a frozen job; it does not change with other tests' requests."""
    return spec(m, trials=10, seconds=60.0)


def fill(store: Store) -> tuple[str, str]:
    """Adds a job that succeeded and one that waits, with a row in every table; returns their ids."""
    outcomes = (
        measured(100.0),
        measured(80.0),
        Rejected(stage=Stage.VERIFY, reason="too much shared memory", stage_s={"verify": 0.1}),
        Failed(stage=Stage.CHECK, kind=FailureKind.WRONG_NUMBERS, reason="element 0", stage_s={"check": 0.2}),
    )
    row = FinalRow(
        candidate=fused(schedule()), trial_number=1, time_us=80.0, spread=0.01, speedup=1.25, speedup_ci95=(1.2, 1.3)
    )
    digest = store.artifacts.put(b"an artifact")
    with store.write() as session:
        done = jobs.insert(session, frozen_spec(16), 1.0, "alice", JobTerms(project="llama", labels=("nightly",)))
        waiting = jobs.insert(session, frozen_spec(32), 2.0)
        token, _ = tokens.create(session, "alice", Role.SUBMIT, 1.0)
        audit.append(session, LOCAL, "token.create", token.id, 1.0)
        ended_sessions.end(session, "a word", 2.0)
        quotas.put(session, Quota(scope=QuotaScope.OWNER, name="alice", open_jobs=20, card_hours_per_day=4.0))
        keys.remember(session, "a key", "0" * 64, done.id, 3.0)
        jobs.set_state(session, done.id, JobState.SEARCHING, 4.0)
        for number, outcome in enumerate(outcomes):
            candidate = LIBRARY if number == 0 else fused(schedule(number + 1))
            trials.record(session, done.id, replace(trial(number, outcome), candidate=candidate), 1.0)
        jobs.set_state(session, done.id, JobState.FINALS, 5.0)
        from tuner.store.results.artifacts import register

        register(session, digest, 11, 6.0)
        bests.insert(session, replace(BEST, job_id=done.id, finals=(row,), artifact_digest=digest))
        asked, _ = inspections.ask(session, done.id, 1, InspectionKind.COUNTERS, None, is_urgent=False, now=7.0)
        inspections.begin(session, asked.seq)
        inspections.finish(session, asked.seq, no_counters("no permission"), (), 8.0)
        jobs.set_state(session, done.id, JobState.SUCCEEDED, 9.0)
    return done.id, waiting.id


def thaw(path: Path, target: Path) -> None:
    """Copies a frozen database to a store's folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress(path.read_bytes()))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        fill(store)
        store.close()
        with sqlite3.connect(Path(folder) / "tuner.db") as connection:
            connection.execute("pragma journal_mode = delete")
        path = FOLDER / f"{migrate.head()}.db.gz"
        path.write_bytes(gzip.compress((Path(folder) / "tuner.db").read_bytes(), mtime=0))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
