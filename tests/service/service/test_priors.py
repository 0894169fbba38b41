"""A job starts with the findings of earlier jobs, reports this, and can be configured not to."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import SickCard, evaluator, finish
from tests.support.builders import measured, schedule, spec, trial
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import CATALOGUE, Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.job import JobSpec, JobState, Objective, PriorsChoice
from tuner.core.trial.outcome import Measured
from tuner.core.trial.priors import Found, KnownFinals, PriorUse
from tuner.core.trial.records import JobRecord
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.runner.priors import PriorBook
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.workers.simulated.evaluator import SimulatedEvaluator

pytestmark = pytest.mark.slow


class StandIn(SimulatedEvaluator):
    """Simulates a target that is named as a real H200."""

    def __init__(self) -> None:
        super().__init__(Target(gpu=CATALOGUE["h200"]))


def run(service: Service, asked: JobSpec) -> tuple[JobRecord, list[PriorUse]]:
    job = finish(service, service.submit(asked)[0])
    assert job.state is JobState.SUCCEEDED, job.reason
    return job, service.priors(job.id)


def test_a_job_begins_with_what_a_job_of_a_like_shape_found_and_says_what_each_gave(serve: Serve) -> None:
    service = serve()
    first, before = run(service, spec(16, trials=8))
    second, uses = run(service, spec(24, trials=12))
    assert before == []
    assert 1 <= len(uses) <= 3
    finals = service.best(first.id).finals
    assert {use.prior.found_us for use in uses} <= {row.time_us for row in finals}
    trials = {trial.number: trial for trial in service.trials(second.id, limit=100).items}
    for index, use in enumerate(uses):
        assert (use.prior.source, use.prior.workload) == (first.id, spec(16).workload.describe())
        assert use.trial_number is not None
        tried = trials[use.trial_number]
        assert (tried.candidate, tried.outcome, tried.prior) == (use.prior.candidate, use.outcome, index)
    assert [trial.prior for trial in trials.values()].count(None) == len(trials) - len(uses)
    [event] = [event for event in service.events(second.id) if event.kind == "priors"]
    assert [one["source"] for one in event.data["priors"]] == [first.id] * len(uses)
    assert event.data["priors"][0]["schedule"] == str(uses[0].prior.candidate.schedule)


def test_priors_are_chosen_once_and_a_fair_job_or_one_with_trials_has_none(tmp_path: Path) -> None:
    class Winners:
        """One that was found for the very workload."""

        def of(self, target_id: str) -> Sequence[Found]:
            return [found(50.0, "shipped a")] if target_id == "h200" else []

        def finals(self, target_id: str) -> Mapping[str, KnownFinals]:
            return {}

    def found(time_us: float, source: str) -> Found:
        candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=schedule())
        return Found(
            workload=spec().workload,
            objective=Objective(),
            candidate=candidate,
            time_us=time_us,
            speedup=1.1,
            source=source,
            kernel_version="k",
        )

    asked = spec(target_id="h200", trials=12)
    past, space = [trial(0, measured(5.0))], Space(asked.workload, CATALOGUE["h200"])
    with closing(Store.open(tmp_path / "data")) as store:
        with store.write() as session:
            job, fair, later = (
                jobs.insert(session, one, 1.0)
                for one in (asked, replace(asked, priors=PriorsChoice.NONE), spec(24, target_id="h200"))
            )
        book = PriorBook(store, RetryingWriter(store, threading.Event()), Winners(), lambda: 2.0)
        (chosen,) = book.of(job, space, [], "k")
        assert (chosen.source, chosen.candidate.schedule) == ("shipped a", schedule())
        assert book.of(fair, space, [], "k") == ()
        assert book.of(later, space, past, "k") == (), "an older version began it without"
        after_a_restart = PriorBook(store, RetryingWriter(store, threading.Event()), None, lambda: 3.0)
        assert after_a_restart.of(job, space, past, "k") == (chosen,)


# In CI, the test above has a fair job.
@pytest.mark.soak
def test_the_same_shape_again_begins_with_its_own_winners_and_a_fair_search_with_nothing(serve: Serve) -> None:
    service = serve(max_ahead=0)
    fair = replace(spec(16, trials=8), priors=PriorsChoice.NONE)
    first, _ = run(service, fair)
    again, uses = run(service, spec(16, trials=8))
    finals = [row for row in service.best(first.id).finals if row.candidate.plan_kind is PlanKind.FUSED]
    best = max((row for row in finals if row.speedup), key=lambda row: row.speedup or 0)
    assert best.candidate in [use.prior.candidate for use in uses]
    assert not any(use.prior.is_adapted for use in uses)
    repeated, none = run(service, fair)
    assert none == []
    assert [event.kind for event in service.events(repeated.id)].count("priors") == 0
    tried = [[trial.candidate for trial in service.trials(job.id, limit=100).items] for job in (first, repeated, again)]
    assert tried[0] == tried[1] != tried[2], "later results do not change a search without priors"


def test_two_questions_differ_where_one_is_fair_and_old_names_of_problems_stay() -> None:
    usual, fair = spec(16), replace(spec(16), priors=PriorsChoice.NONE)
    assert usual.problem_digest != fair.problem_digest
    assert "priors" not in usual.to_json()
    assert [JobSpec.from_json(one.to_json()) for one in (usual, fair)] == [usual, fair]


class Kept:
    """Winners of a real H200 whose speed-up is set to 1,000."""

    def __init__(self) -> None:
        space = Space(spec(16).workload, CATALOGUE["h200"])
        self.found = [
            Found(
                workload=space.workload,
                objective=Objective(),
                candidate=Candidate(plan_kind=PlanKind.FUSED, schedule=schedule),
                time_us=0.01,
                speedup=1000.0,
                source="shipped small",
                kernel_version="of old",
            )
            for schedule in islice(space, 2)
        ]

    def of(self, target_id: str) -> Sequence[Found]:
        return self.found if target_id == "h200" else ()

    def finals(self, target_id: str) -> Mapping[str, KnownFinals]:
        return {}


def test_a_real_card_never_begins_with_what_was_simulated_nor_the_other_way_round_and_no_prior_is_a_result(
    tmp_path: Path,
) -> None:
    service = Service(Store.open(tmp_path), LocalDispatcher([StandIn(), evaluator()]), winners=Kept())
    service.start()
    try:
        _, simulated = run(service, spec(trials=8))
        job, real = run(service, spec(trials=8, target_id="h200"))
        _, simulated_again = run(service, spec(24, trials=8))
    finally:
        service.close()
    assert simulated == []
    assert [use.prior.source for use in real] == ["shipped small"] * 2
    assert simulated_again
    assert not {use.prior.source for use in simulated_again} & {"shipped small", job.id}
    assert all(use.outcome.speedup < 10 for use in real if isinstance(use.outcome, Measured))
    assert job.best_us is not None
    assert job.best_us > 1


# In CI, another test asks for priors again after a restart.
@pytest.mark.soak
def test_a_job_that_goes_on_after_a_restart_has_the_priors_that_it_began_with(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.probing.PROBE_PAUSES_S", (0.01,))
    run(serve(), spec(16, trials=8))
    card = SickCard(2)
    service = serve(card, max_ahead=0)
    job, _ = service.submit(spec(24, trials=12))
    wait_until(lambda: card.num_probes >= 2)
    begun = service.priors(job.id)
    assert [use.trial_number for use in begun][:2] == [1, None]
    service = serve(max_ahead=0)
    assert finish(service, job).state is JobState.SUCCEEDED
    ended = service.priors(job.id)
    assert [use.prior for use in ended] == [use.prior for use in begun]
    assert [use.trial_number for use in ended] == list(range(1, 1 + len(ended)))
