"""A service with more jobs than a page holds, of many owners."""

from __future__ import annotations

from dataclasses import replace

from tests.support.builders import spec
from tuner.core.access.caller import Caller, Role
from tuner.core.problem.workload import Activation
from tuner.core.trial.job import JobState, JobTerms
from tuner.dispatch import LocalDispatcher
from tuner.ops.gemm.pairs import ffn_pair
from tuner.service import Service
from tuner.service.submission.submissions import Submission
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.tables.models import JobRow

NUM_BATCHES, JOBS_OF_A_BATCH, NUM_ALONE, NUM_OWNERS = 20, 25, 30, 10


def many_jobs(store: Store) -> Service:
    """500 jobs in 20 batches by 10 owners, some in each state, and 30 single jobs. No server runs them: the service
    accepts jobs for another server, which does not exist."""
    service = Service(store, LocalDispatcher([]), leads=lambda: False)
    callers = [Caller(owner=f"owner{one}", role=Role.SUBMIT, token_id="tok-0") for one in range(NUM_OWNERS)]
    for batch in range(NUM_BATCHES):
        sizes = {"d_in": 4096, "d_hidden": 14336 + 256 * batch, "d_out": 4096}
        shapes = [
            ffn_pair(m=8 * row + 8, **sizes, activation=Activation.SILU, gated=True) for row in range(JOBS_OF_A_BATCH)
        ]
        terms = JobTerms(project="llama" if batch % 2 else "", labels=("nightly",))
        service.batches.submit(
            [replace(spec(), workload=shape) for shape in shapes], caller=callers[batch % NUM_OWNERS], terms=terms
        )
    for number in range(NUM_ALONE):
        service.submissions.submit(Submission(spec=spec(m=1000 + number), caller=callers[number % NUM_OWNERS]))
    with store.write() as session:
        for place, row in enumerate(session.query(JobRow).order_by(JobRow.seq).all()):
            if place % 50 == 3:
                jobs.set_state(session, row.id, JobState.SEARCHING, 1.0)
            elif place < 250 or place >= 520:
                jobs.set_state(session, row.id, JobState.CANCELLED, 1.0)
            row.best_speedup = 1.0 + place / 1000 if place % 3 == 0 else None
            row.best_us = 10.0 + place if place % 3 == 0 else None
    return service
