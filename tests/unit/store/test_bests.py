from __future__ import annotations

from dataclasses import replace

from tests.support.builders import BEST, spec
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests


def test_a_result_keeps_how_its_finals_were_held_and_an_older_one_says_that_it_does_not_know(store: Store) -> None:
    for m, procedure in ((16, BEST.procedure), (32, None)):
        with store.write() as session:
            best = replace(BEST, job_id=jobs.insert(session, spec(m), 1.0).id, procedure=procedure)
            bests.insert(session, best)
        with store.read() as session:
            assert bests.find(session, best.job_id) == best
