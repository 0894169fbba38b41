"""Timed jobs, and contests between their results: services in this process, over one card."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import NUM_SEARCHES, Ended, JobError, Jobs, jobs_over
from benchmarks.common.rows import Row
from benchmarks.search.timed import LentEvaluator, Span, TimedEvaluator, card_figures
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Environment, Evaluator, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, JobState, PriorsChoice
from tuner.core.trial.ladders.batch import BatchRecord
from tuner.core.trial.priors import Found
from tuner.core.trial.stats import compare, median, paired_ratios
from tuner.dispatch.factory import make_evaluators
from tuner.search import SearchProcesses
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

#: Maximum seconds of search, more than any job here needs.
SEARCH_LIMIT_S = 500.0
_POLL_S = 0.1
#: The folder of cubins.
BUILDS = "builds"


class HeldOutWinners(ShippedWinners):
    """The built-in winners, except those of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.without = ""

    def of(self, target_id: str) -> Sequence[Found]:
        """Winners of a target."""
        return [one for one in super().of(target_id) if one.source != f"shipped {self.without}"]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A job that succeeded, and the evaluator's calls during the job."""

    ended: Ended
    spans: list[Span]

    def figures(self) -> dict[str, Any]:
        """Seconds, counts, and results."""
        job, best, trials = self.ended.job, self.ended.best, self.ended.trials
        finished_at = job.finished_at or 0.0
        row = best.finals[best.winner_row or 0]
        fastest = min((one for one in best.finals if one.time_us), key=lambda one: one.time_us or 0.0)
        return {
            "trials": job.num_trials,
            "measured": job.num_measured,
            "rejected": job.num_rejected,
            "failed": job.num_failed,
            "job_s": round(finished_at - job.created_at, 2),
            "search_s": round(job.search_s, 2),
            "finals_s": round(finished_at - trials[-1].finished_at, 2),
            "num_finalists": len(best.finals),
            **card_figures(self.spans),
            "stage_s": self._stage_s(),
            "card_share": None if job.card_share is None else round(job.card_share, 3),
            "priors_tried": sum(trial.prior is not None for trial in trials),
            "verdict": str(best.verdict),
            "library_us": round(best.finals[0].time_us or 0.0, 3),
            "winner": candidate_json(row.candidate),
            "winner_us": round(row.time_us or 0.0, 3),
            "fastest": candidate_json(fastest.candidate),
            "fastest_us": round(fastest.time_us or 0.0, 3),
            "tie_band": round(best.tie_band, 5),
            "kinds": self._kinds(),
            "lead": self.lead(),
        }

    def lead(self) -> dict[str, Any] | None:
        """The round-by-round speed-up of the fastest fused finalist over the fastest other one, which decides the
        verdict. None if there is no such pair."""
        *_, span = (span for span in self.spans if span.what == "finals")
        timed = [
            (row.candidate.plan_kind.is_fused, us)
            for row, us in zip(self.ended.best.finals, span.times_us, strict=True)
            if us
        ]
        fused, others = ([us for is_fused, us in timed if is_fused is wanted] for wanted in (True, False))
        if not fused or not others:
            return None
        found = compare(min(fused, key=median), min(others, key=median), span.process_of_round)
        return {"speedup": round(found.speedup, 5), "ci95": [round(one, 5) for one in found.ci95]}

    def _kinds(self) -> dict[str, Any]:
        """The fastest finalist of each plan kind: microseconds, and its speed-up with the interval."""
        rows = sorted((row for row in self.ended.best.finals if row.time_us), key=lambda row: row.time_us or 0.0)
        first = {str(row.candidate.plan_kind): row for row in reversed(rows)}
        return {
            kind: {"us": row.time_us, "speedup": row.speedup, "ci95": row.speedup_ci95} for kind, row in first.items()
        }

    def _stage_s(self) -> dict[str, float]:
        """Seconds by stage, summed over the trials; then those of the finals."""
        found = Counter[str]()
        for trial in self.ended.trials:
            found.update(trial.outcome.stage_s)
        for span in self.spans:
            found.update({f"finals.{stage}": seconds for stage, seconds in span.stage_s.items()})
        return {stage: round(seconds, 3) for stage, seconds in found.items()}


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """A candidate in the form of a results file; `candidate_of` is its inverse."""
    schedule = candidate.schedule
    return {
        "plan_kind": str(candidate.plan_kind),
        "schedule": None if schedule is None else schedule.to_json(),
        "text": "" if schedule is None else str(schedule),
    }


def candidate_of(data: dict[str, Any]) -> Candidate:
    """Inverse of `candidate_json`."""
    schedule = data["schedule"]
    return Candidate(
        plan_kind=PlanKind(data["plan_kind"]), schedule=None if schedule is None else Schedule.from_json(schedule)
    )


class Bench:
    """One card, and a service without earlier jobs."""

    def __init__(self, jobs: Jobs, evaluator: TimedEvaluator, winners: HeldOutWinners, builds: Path) -> None:
        self.jobs = jobs
        self._evaluator = evaluator
        self._winners = winners
        self._builds = builds

    def spec(
        self, problem: Problem, trials: int, *, seed: int = 0, priors: PriorsChoice = PriorsChoice.NONE
    ) -> JobSpec:
        """The spec of a job of `trials` trials."""
        return JobSpec(
            workload=problem.workload,
            target_id=self.jobs.target_id,
            objective=problem.objective,
            budget=Budget(trials=trials, seconds=SEARCH_LIMIT_S),
            seed=seed,
            priors=priors,
        )

    def run(self, spec: JobSpec, *, without: str = "") -> Timed:
        """Runs a job from its submission to its end; it may start with shipped winners, except those of the row
        `without`.

        Raises:
            JobError: the job has not succeeded.
        """
        self._winners.without = without
        self._evaluator.take_spans()
        ended = self.jobs.end(self.jobs.begin(spec, anew=True))
        return Timed(ended=ended, spans=self._evaluator.take_spans())

    def run_batch(self, specs: Sequence[JobSpec]) -> tuple[BatchRecord, float, dict[str, float]]:
        """Runs a batch from its submission to its end; returns it with its seconds, and the durations of the
        evaluator's calls and of the stages of its finals.

        Raises:
            JobError: the batch has not succeeded.
        """
        service, begin_s, spent_s = self.jobs.service, time.monotonic(), Counter[str]()
        self._evaluator.take_spans()
        batch, _ = service.batches.submit(specs)
        while not batch.state.is_final:
            service.check_alive()
            time.sleep(_POLL_S)
            batch = service.batches.get(batch.id)
        took_s = time.monotonic() - begin_s
        if batch.state is not JobState.SUCCEEDED:
            raise JobError(f"{batch.id} ended {batch.state}")
        for span in self._evaluator.take_spans():
            spent_s.update({span.what: span.end_s - span.begin_s})
            spent_s.update({f"finals.{stage}": seconds for stage, seconds in span.stage_s.items()})
        return batch, took_s, {what: round(spent, 2) for what, spent in spent_s.items()}

    def forget_builds(self) -> None:
        """Empties the cache of cubins, so that later builds take as long as on a new machine."""
        for file in self._builds.glob("*"):
            file.unlink(missing_ok=True)

    def contest(
        self, problem: Problem, candidates: Sequence[Candidate]
    ) -> tuple[dict[Candidate, tuple[float, ...]], list[str]]:
        """Microseconds of the library and of each candidate in the rounds of one finals, and the reasons why some have
        no times."""
        ready, reasons = [LIBRARY], []
        wanted = [one for one in dict.fromkeys(candidates) if one != LIBRARY]
        builds = self.jobs.dispatcher.builds(self.jobs.target_id)
        preparations = [builds.prepare(problem, candidate) for candidate in wanted]
        for candidate, preparing in zip(wanted, preparations, strict=True):
            preparation = preparing.result()
            if isinstance(preparation, Prepared):
                ready.append(candidate)
            else:
                reasons.append(f"{candidate.plan_kind}: {preparation.reason}")
        lane = self.jobs.dispatcher.lane(self.jobs.target_id)
        num_rounds = FinalsProcedure().rounds_in(problem.objective.regime)
        times = lane.finals(problem, tuple(ready), num_rounds).result()
        reasons += [reason for reason in times.reasons if reason]
        return {one: us for one, us in zip(ready, times.times_us, strict=True) if us}, reasons

    def kept_winners(self, row: Row, count: int) -> list[Candidate]:
        """The fastest built-in winners for a row."""
        return [one.candidate for one in kept_for(row.name, self._evaluator.target.gpu.id)[:count]]


def kept_for(row_name: str, gpu_id: str) -> list[Found]:
    """Shipped winners of a row on this model, or on another if it has none, the fastest first; times are of the model
    on which they were measured."""
    others = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != gpu_id)
    for model in (gpu_id, *others):
        if found := [one for one in ShippedWinners().of(model) if one.source == f"shipped {row_name}"]:
            return sorted(found, key=lambda one: one.time_us)
    return []


def loss_of(
    wanted: Candidate, times_us: dict[Candidate, tuple[float, ...]], *, or_library: bool = False
) -> float | None:
    """How much slower a candidate is than the fastest of all, relative, from shared rounds; with `or_library` the
    library may be used instead. None if the candidate has no time."""
    if wanted not in times_us:
        return None
    own = min((times_us[wanted], times_us[LIBRARY]), key=median) if or_library else times_us[wanted]
    return median(paired_ratios(own, min(times_us.values(), key=median))) - 1


class Card:
    """One card of this machine, or a simulated one, for several services in sequence."""

    def __init__(self, evaluator: Evaluator, scratch: Path) -> None:
        """Uses `evaluator`; its builds are in the folder `scratch`, like the services' data."""
        self._evaluator = evaluator
        self._scratch = scratch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="card")
        self._processes = SearchProcesses(NUM_SEARCHES)
        self._num_services = 0

    @property
    def target_id(self) -> str:
        """The id of the card's target, e.g. ``h200``."""
        return self._evaluator.target.id

    @property
    def environment(self) -> Environment:
        """The environment at the start."""
        return self._evaluator.environment()

    @contextmanager
    def open_bench(self) -> Iterator[Bench]:
        """A service with an empty folder."""
        self._num_services += 1
        lent, winners = LentEvaluator(self._evaluator, self._thread), HeldOutWinners()
        data, builds = self._scratch / f"data{self._num_services}", self._scratch / BUILDS
        with jobs_over(lent, winners=winners, data=data, search=self._processes.search) as jobs:
            yield Bench(jobs, lent, winners, builds)

    def close(self) -> None:
        """Ends its processes."""
        self._processes.close()
        self._evaluator.close()
        self._thread.shutdown()


@contextmanager
def open_card(gpu: str) -> Iterator[Card]:
    """This machine's first card, or a simulated one; its data are temporary."""
    with tempfile.TemporaryDirectory() as scratch:
        evaluators, why = make_evaluators(gpu, build_cache=Path(scratch) / BUILDS)
        print(why, flush=True)
        for other in evaluators[1:]:
            other.close()
        with closing(Card(evaluators[0], Path(scratch))) as card:
            yield card
