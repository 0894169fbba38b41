from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import DyingChild, FailingKinds, FailingWorker, Latch, evaluator, finish
from tests.support.builders import spec
from tests.support.waiting import wait_until
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.policy_orders import RULES, policies_of
from tuner.core.trial.job import JobState, PriorsChoice
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Verdict
from tuner.errors import Conflict, NotFound
from tuner.service.finals.finals import best_speedup
from tuner.workers.simulated.evaluator import Faults


def test_a_job_ends_with_a_verdict_finals_of_each_kind_and_an_artifact(serve: Serve) -> None:
    service = serve(max_ahead=0)  # so that a busy machine tries the same candidates
    job = finish(service, service.submit(spec(trials=40))[0])
    assert (job.state, job.num_trials, job.reason) == (JobState.SUCCEEDED, 40, "")
    best = service.best(job.id)
    kinds = [row.candidate.plan_kind for row in best.finals]
    assert list(dict.fromkeys(kinds)) == [kind for kind in PlanKind if kind in kinds]
    assert set(kinds) == {kind for kind in PlanKind if kind.is_for(2)}
    tried = service.trials(job.id, limit=40, outcome="measured", plan_kind=PlanKind.FUSED).items
    whole = [trial for trial in tried if isinstance(trial.outcome, Measured) and not trial.outcome.truncated]
    assert kinds.count(PlanKind.FUSED) == min(3, len(whole))
    everything = service.trials(job.id, limit=40).items
    for trial in tried:
        known = best_speedup(everything[: trial.num_known])
        if known is not None and isinstance(trial.outcome, Measured) and trial.outcome.speedup < 0.7 * known:
            assert trial.outcome.truncated, "the best so far is not measured again"
    assert best.environment.simulated
    assert best.reference_us == reference_us(job.spec.workload, parse_target(job.spec.target_id).gpu)
    for row in best.finals[1:]:
        assert row.speedup_ci95 is not None
        assert row.speedup is not None
        assert row.speedup_ci95[0] <= row.speedup <= row.speedup_ci95[1]
    assert best.artifact_digest is not None
    with zipfile.ZipFile(io.BytesIO(service.artifact(best.artifact_digest))) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert set(archive.namelist()) == {*manifest["files"], "manifest.json"}
    assert "kernel.cubin" not in manifest["files"]
    assert (manifest["simulated"], manifest["job_id"]) == (True, job.id)
    assert manifest["result"]["verdict"] == best.verdict


@pytest.mark.slow
def test_a_result_tells_what_each_policy_would_have_reached(serve: Serve) -> None:
    service = serve(evaluator(faults=Faults(hang=0, crash=0, wrong_numbers=0)))
    job = finish(service, service.submit(spec(trials=16))[0])
    best = service.best(job.id)
    assert [one.policy for one in best.policies] == ["searched", *RULES]
    assert all(one.forecast_us > 0 for one in best.policies)
    tried = {trial.number: trial for trial in service.trials(job.id, limit=60).items}
    measured = [one for one in best.policies if one.trial_number is not None]
    assert measured
    for one in measured:
        assert one.trial_number is not None
        trial = tried[one.trial_number]
        assert isinstance(trial.outcome, Measured)
        assert (trial.candidate.plan_kind, one.measured_us) == (PlanKind.FUSED, trial.outcome.time_us)
        assert trial.candidate.schedule is not None
        named = policies_of(job.spec.workload, parse_target(job.spec.target_id).gpu, trial.candidate.schedule)
        assert one.policy in (*named, "searched")
    assert all(one.measured_us is None for one in best.policies if one.trial_number is None)


# In CI, a job in which only fused launches fail has such finals.
@pytest.mark.soak
def test_finals_are_held_as_the_service_was_told_and_the_result_says_how(serve: Serve) -> None:
    service = serve(evaluator(faults=Faults(hang=0, crash=0, wrong_numbers=0)))
    usual = service.best(finish(service, service.submit(spec(trials=12))[0]).id)
    assert usual.procedure == FinalsProcedure()
    assert {row.num_rounds for row in usual.finals} == {2 * usual.procedure.num_rounds}
    held = FinalsProcedure(num_rounds=3, min_tie_band=0.9)
    service = serve(evaluator(faults=Faults(hang=0, crash=0, wrong_numbers=0)), finals=held)
    best = service.best(finish(service, service.submit(spec(trials=12, seed=1))[0]).id)
    assert (best.procedure, best.verdict) == (held, Verdict.TIE)
    assert 0.9 <= best.tie_band < 1.0, "beyond the minimum, up to the end of the interval"
    assert {row.num_rounds for row in best.finals} == {6}
    assert best.artifact_digest is not None
    with zipfile.ZipFile(io.BytesIO(service.artifact(best.artifact_digest))) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["result"]["procedure"] == {"num_rounds": 3, "min_tie_band": 0.9}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "kinds"),
    [
        (1, [PlanKind.LIBRARY]),
        (2, [PlanKind.LIBRARY, PlanKind.FUSED]),
        (3, [PlanKind.LIBRARY, PlanKind.TWO_LAUNCHES, PlanKind.FUSED]),
    ],
)
def test_a_tiny_budget_is_spent_on_what_matters_most(serve: Serve, trials: int, kinds: list[PlanKind]) -> None:
    service = serve(evaluator(faults=Faults(hang=0, crash=0, wrong_numbers=0)))
    job = finish(service, service.submit(spec(trials=trials))[0])
    assert job.state is JobState.SUCCEEDED
    assert [row.candidate.plan_kind for row in service.best(job.id).finals] == kinds


# In CI, tests/unit/service/test_runner.py has what a budget leaves.
@pytest.mark.soak
def test_a_budget_of_seconds_ends_the_search(serve: Serve) -> None:
    service = serve(evaluator(latency_s=0.05))
    job = finish(service, service.submit(spec(trials=1000, seconds=0.5))[0])
    assert job.state is JobState.SUCCEEDED
    assert 2 <= job.num_trials < 100
    assert job.search_s >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("in_finals", [False, True])
def test_where_all_of_ours_fails_the_verdict_is_do_not_fuse_and_the_library_wins(serve: Serve, in_finals: bool) -> None:
    service = serve(FailingKinds(*(kind for kind in PlanKind if kind.is_ours), in_finals=in_finals))
    job = finish(service, service.submit(spec(trials=8))[0])
    best = service.best(job.id)
    assert (best.verdict, best.winner, best.artifact_digest) == (Verdict.DO_NOT_FUSE, PlanKind.LIBRARY, None)


def test_where_only_fused_fails_two_launches_are_the_kernel_to_fetch(serve: Serve) -> None:
    held = FinalsProcedure(num_rounds=3, min_tie_band=0.02)
    service = serve(FailingKinds(PlanKind.FUSED), finals=held)
    job = finish(service, service.submit(spec(trials=8))[0])
    best = service.best(job.id)
    assert best.verdict is Verdict.DO_NOT_FUSE
    assert (best.procedure, {row.num_rounds for row in best.finals if row.time_us}) == (held, {6})
    assert best.artifact_digest is not None
    with zipfile.ZipFile(io.BytesIO(service.artifact(best.artifact_digest))) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert PlanKind(manifest["plan_kind"]).launched_plainly is PlanKind.TWO_LAUNCHES
    assert manifest["result"]["procedure"] == {"num_rounds": 3, "min_tie_band": 0.02}


@pytest.mark.slow
@pytest.mark.parametrize("in_finals", [False, True])
def test_where_the_library_fails_the_job_fails_with_a_sentence(serve: Serve, in_finals: bool) -> None:
    service = serve(FailingKinds(PlanKind.LIBRARY, in_finals=in_finals))
    job = finish(service, service.submit(spec(trials=4))[0])
    assert job.state is JobState.FAILED
    assert "library" in job.reason
    with pytest.raises(NotFound, match="it failed: "):
        service.best(job.id)


def test_a_process_that_dies_in_the_librarys_trial_costs_neither_a_trial_nor_the_job(serve: Serve) -> None:
    service = serve(DyingChild(2))
    job = finish(service, service.submit(spec(trials=4))[0])
    assert (job.state, job.num_trials, job.num_failed) == (JobState.SUCCEEDED, 4, 0)


def test_a_library_that_always_takes_its_process_along_fails_the_job(serve: Serve) -> None:
    service = serve(DyingChild(3))
    job = finish(service, service.submit(spec(trials=4))[0])
    assert (job.state, job.num_failed) == (JobState.FAILED, 1)
    assert "the library's trial ended with the GPU process died (signal 9)" in job.reason


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses."""
    monkeypatch.setattr("tuner.service.concurrency.waiting.RETRY_PAUSES_S", (0.01, 0.01))


# In CI, tests/unit/service/test_pipeline.py has lost workers.
@pytest.mark.soak
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_comes_back_costs_no_trial(serve: Serve) -> None:
    service = serve(FailingWorker(2))
    job = finish(service, service.submit(spec(64, trials=3))[0])
    assert (job.state, job.num_trials, job.num_failed) == (JobState.SUCCEEDED, 3, 0)


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_stays_away_fails_the_job_with_its_reason_and_not_the_next_job(serve: Serve) -> None:
    service = serve(FailingWorker(3))
    first, second = service.submit(spec(16, trials=3))[0], service.submit(spec(32, trials=3))[0]
    job = finish(service, first)
    assert (job.state, job.num_trials) == (JobState.FAILED, 0)
    assert "failed 3 times: the card does not answer" in job.reason
    assert finish(service, second).state is JobState.SUCCEEDED


def test_a_fault_of_the_service_fails_the_job_and_leaves_the_runner_alive(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve()
    monkeypatch.setattr("tuner.search.order.Searcher", lambda *args, **kwargs: 1 / 0)
    job = finish(service, service.submit(spec())[0])
    assert (job.state, "ZeroDivisionError" in job.reason) == (JobState.FAILED, True)
    service.ready()


def test_a_cancelled_job_records_nothing_more_and_the_next_one_runs(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    first, second = service.submit(spec(16, trials=5))[0], service.submit(spec(32, trials=3))[0]
    assert latch.is_reached.wait(60)
    assert service.cancel(first.id).state is JobState.CANCELLED
    latch.is_open.set()
    assert finish(service, second).state is JobState.SUCCEEDED
    assert service.job(first.id).num_trials == 0
    assert service.cancel(first.id).state is JobState.CANCELLED
    with pytest.raises(Conflict, match="succeeded cannot become cancelled"):
        service.cancel(second.id)
    with pytest.raises(NotFound, match="it was cancelled"):
        service.best(first.id)


# In CI, test_ending.py ends a server while a trial runs.
@pytest.mark.soak
def test_closing_while_a_trial_runs_loses_nothing_and_the_job_goes_on_later(serve: Serve) -> None:
    service = serve(evaluator(latency_s=0.02))
    job, _ = service.submit(spec(trials=30))
    wait_until(lambda: service.job(job.id).num_trials >= 8)
    kept = service.trials(job.id, limit=8).items
    service = serve()
    assert service.trials(job.id, limit=8).items == kept
    ended = finish(service, job)
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 30)
    assert [trial.number for trial in service.trials(job.id, limit=100).items] == list(range(30))


# In CI, tests/unit/search/test_searcher.py has it without a service.
@pytest.mark.soak
def test_one_by_one_an_interrupted_search_tries_the_same_candidates_as_an_uninterrupted_one(serve: Serve) -> None:
    service = serve(evaluator(latency_s=0.01), max_ahead=0)
    # Otherwise the second begins with the results of the first.
    fair = replace(spec(trials=25), priors=PriorsChoice.NONE)
    whole = finish(service, service.submit(fair)[0])
    parted, _ = service.submit(fair)
    wait_until(lambda: service.job(parted.id).num_trials >= 9)
    service = serve(max_ahead=0)
    finish(service, parted)
    one, other = (
        [(trial.candidate, trial.outcome.__class__) for trial in service.trials(job.id, limit=100).items]
        for job in (whole, parted)
    )
    assert one == other
