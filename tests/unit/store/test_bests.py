from __future__ import annotations

from dataclasses import replace

from tests.support.builders import spec
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, PolicyTime, Verdict
from tuner.store import Store, bests, jobs

BEST = Best(
    job_id="",
    verdict=Verdict.TIE,
    winner=PlanKind.LIBRARY,
    tie_band=0.02,
    procedure=FinalsProcedure(num_rounds=7, min_tie_band=0.02),
    finals=(),
    reference_us=1.0,
    artifact_digest=None,
    environment=Environment(gpu_name="simulated", simulated=True),
    policies=(PolicyTime(policy="append", forecast_us=1.5, measured_us=None, trial_number=None),),
)


def test_a_result_keeps_how_its_finals_were_held_and_an_older_one_says_that_it_does_not_know(store: Store) -> None:
    for m, procedure in ((16, BEST.procedure), (32, None)):
        with store.write() as session:
            best = replace(BEST, job_id=jobs.insert(session, spec(m), 1.0).id, procedure=procedure)
            bests.insert(session, best)
        with store.read() as session:
            assert bests.find(session, best.job_id) == best
