"""A store with one job of many trials, made for the benchmarks of the service."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from benchmarks.cpu.best import TARGET
from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, Trial
from tuner.core.trial.outcome import Measured, Outcome, Rejected, Stage
from tuner.core.trial.samples import Round
from tuner.ops.gemm.pairs import ffn_pair
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials

#: Rounds of a trial: two kilobytes of samples.
NUM_ROUNDS = 85
#: Number of different schedules among the trials.
NUM_SCHEDULES = 100


def fill(directory: Path, num_trials: int) -> str:
    """Adds one job with `num_trials` trials; returns its id."""
    chance = random.Random(1)
    workload = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    schedules = list(islice(Space(workload, CATALOGUE["h200"]), NUM_SCHEDULES))
    rounds = tuple(Round(time_us=60.0, library_us=70.0) for _ in range(NUM_ROUNDS))
    store, budget = Store.open(directory), Budget(trials=num_trials, seconds=60)
    spec = JobSpec(workload=workload, target_id=TARGET, objective=Objective(), budget=budget)
    with store.write() as session:
        job = jobs.insert(session, spec, 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
    for begin in range(0, num_trials, 1000):
        with store.write() as session:
            for number in range(begin, min(begin + 1000, num_trials)):
                kind = PlanKind.LIBRARY if number == 0 else chance.choice(list(PlanKind)[1:])
                time_us = chance.uniform(55, 90)
                outcome: Outcome = Measured(
                    time_us=time_us, library_us=70.0, speedup=70 / time_us, spread=0.01, rounds=rounds, rel_error=0.0,
                    metrics=(forecast_metric(time_us * chance.uniform(0.9, 1.1)),),
                )  # fmt: skip
                if chance.random() < 0.1:
                    outcome = Rejected(stage=Stage.VERIFY, reason="it needs too much shared memory")
                candidate = Candidate(plan_kind=kind, schedule=chance.choice(schedules) if kind.is_ours else None)
                one = Trial(
                    number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=2.0 + number / 10,
                    finished_at=2.1 + number / 10,
                )  # fmt: skip
                trials.record(session, job.id, one, 0.1)
    with store.write() as session:
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    store.close()
    return job.id
