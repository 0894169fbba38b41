from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import BEST, spec
from tuner.core.problem.gpu import CATALOGUE, SIMULATED_PREFIX
from tuner.core.trial.believable import believe
from tuner.core.trial.evaluator import Environment
from tuner.errors import Unbelievable
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


def test_the_longest_texts_of_a_worker_that_are_accepted_fit_into_the_tables(store: Store) -> None:
    gpu, longest = (
        replace(CATALOGUE["h200"], id="h" * 54),
        {"gpu_name": 100, "driver": 40, "cuda": 40, "kernel_version": 40},
    )
    environment = Environment(simulated=True, **{name: "x" * length for name, length in longest.items()})
    believe([gpu, environment])
    with store.write() as session:
        job = jobs.insert(session, spec(target_id=SIMULATED_PREFIX + gpu.id), 1.0)
        bests.insert(session, replace(BEST, job_id=job.id, environment=environment))
    longer = [replace(environment, **{name: "x" * (length + 1)}) for name, length in longest.items()]
    for one in (replace(gpu, id="h" * 55), *longer):
        with pytest.raises(Unbelievable):
            believe(one)
