"""Counts the database statements of a job: a trial must stay cheap for a server of many GPUs."""

from __future__ import annotations

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import finish
from tests.support.builders import spec
from tests.support.queries import statements_of
from tuner.core.trial.job import JobTerms
from tuner.store import Store
from tuner.store.jobs import jobs

#: Statements per trial: a write (begin, the job, the trial, its event, the job's sums), a read (begin, and the
#: queries), and two statements of timers.
PER_TRIAL = 9
#: Statements for a job's start and end, its finals and its artifact: about a hundred.
PER_JOB = 200


@pytest.mark.slow
def test_a_trial_takes_a_few_statements(serve: Serve) -> None:
    service = serve()
    with statements_of(service._store.engine, elsewhere=True) as statements:
        job = finish(service, service.submit(spec(trials=30))[0])
    assert job.num_trials == 30
    assert sum("INSERT INTO trials" in one for one in statements) == job.num_trials
    # After the job, the energies of its finalists are measured; some of them may be missing at this point.
    behind = [place for place, one in enumerate(statements) if one.startswith("UPDATE inspections")]
    assert min(behind, default=len(statements)) < PER_TRIAL * job.num_trials + PER_JOB


def test_a_job_with_its_owners_and_labels_is_three_statements(store: Store) -> None:
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0, owner="ada")
        jobs.attach(session, job.id, "bob", JobTerms(), 2.0)
    with statements_of(store.engine) as statements, store.read() as session:
        found = jobs.get(session, job.id)
    assert found.owners == ("ada", "bob")
    tables = [one.split("FROM ")[1].split()[0] for one in statements if one.startswith("SELECT")]
    assert tables == ["jobs", "job_owners", "job_labels"]
