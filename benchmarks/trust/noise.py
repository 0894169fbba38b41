"""How much of a result is luck: one candidate measured 50 times, and one job run 10 times with other seeds.

python -m benchmarks.trust.noise [--gpu auto] [--quick] [--out benchmarks/results/<gpu>/noise.json]

Takes under four minutes on an H200: no job begins after LIMIT_S. What the jobs chose is timed once more, all in the
same rounds, so that what a job lost by its choice (the regret) is no comparison across time.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.setting import problem_of, read_options, twin_of
from tests.support.on_card import fused, schedule
from tuner.core.insight.traces.tracing import no_trace
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.trial.evaluator import Evaluator, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, JobState, PriorsChoice
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Best, FinalRow
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_counters, no_energy
from tuner.core.trial.stats import median, paired_ratios, relative_spread
from tuner.dispatch import LocalDispatcher
from tuner.ops.gemm.pairs import ffn_pair
from tuner.service import Service
from tuner.store import Store
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

#: No job begins later, seconds; one takes about ten.
LIMIT_S = 190.0
#: Of a job's search, and of the whole job, which is an error afterwards; seconds.
SEARCH_LIMIT_S, JOB_LIMIT_S = 20.0, 60.0
WORKLOAD = ffn_pair(m=64, d_in=1024, d_hidden=4096, d_out=1024, activation=Activation.RELU)
PROBLEM = problem_of(WORKLOAD)
CANDIDATE = fused(schedule(((64, 64, 64), (64, 64, 64)), stages=4, assignment=Assignment.STATIC))

Row = dict[str, Any]


class PlainSupervisor(GpuSupervisor):
    """Without what a job does for its readers alone: inspections."""

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        """None."""
        return no_counters("this benchmark takes no inspections")

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """None."""
        return no_trace("this benchmark takes no inspections", simulated=False)

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        """None."""
        return no_energy("this benchmark takes no inspections")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    num_repeats: int = 50
    num_jobs: int = 10
    #: Trials of each job.
    num_trials: int = 15


QUICK = Size(num_repeats=5, num_jobs=2, num_trials=8)


@dataclass(frozen=True, kw_only=True)
class Win:
    """What one job answered."""

    seed: int
    verdict: str
    #: Of the kind that won, the fastest; and our fastest, whatever won.
    winner: FinalRow
    kernel: FinalRow
    job_s: float

    def to_json(self) -> Row:
        """Raw figures of a row."""
        return {
            "seed": self.seed,
            "verdict": self.verdict,
            **{
                name: {
                    "plan_kind": str(row.candidate.plan_kind),
                    "schedule": str(row.candidate.schedule or ""),
                    "time_us": row.time_us,
                    "speedup": row.speedup,
                }
                for name, row in (("winner", self.winner), ("kernel", self.kernel))
            },
            "job_s": round(self.job_s, 2),
        }


def trial_row(outcomes: Sequence[Measured]) -> Row:
    """`trial_spread`: half the interquartile range of the speed-ups of one candidate, over their median."""
    speedups = [outcome.speedup for outcome in outcomes]
    middle = median(speedups)
    return {
        "figure": "trial_spread",
        "value": round(relative_spread(speedups), 6),
        "of": len(speedups),
        "worst": round(max(abs(speedup / middle - 1) for speedup in speedups), 6),
        "time_spread": round(relative_spread([outcome.time_us for outcome in outcomes]), 6),
        "spread_within_a_trial": round(median([outcome.spread for outcome in outcomes]), 6),
        "speedups": speedups,
        "times_us": [outcome.time_us for outcome in outcomes],
    }


def winner_rows(wins: Sequence[Win], times_us: Mapping[Candidate, Sequence[float]]) -> list[Row]:
    """`winner_flip_rate`: the share of jobs whose winning plan kind is not the commonest one, and `flip_regret`: by how
    much their winners are slower than the best winner, at most. `kernel_flip_rate` and `kernel_regret` say the same for
    the fastest kernel of ours in each job, kind and schedule together.

    `times_us` are of all of these candidates, in rounds that they share.
    """
    kinds = Counter(win.winner.candidate.plan_kind for win in wins)
    kernels = Counter(win.kernel.candidate for win in wins)
    usual_kind, usual_kernel = kinds.most_common(1)[0][0], kernels.most_common(1)[0][0]
    by_kind = [win.winner.candidate.plan_kind is not usual_kind for win in wins]
    by_kernel = [win.kernel.candidate != usual_kernel for win in wins]
    winner_regrets = regrets([win.winner.candidate for win in wins], times_us)
    kernel_regrets = regrets([win.kernel.candidate for win in wins], times_us)
    verdicts = Counter(win.verdict for win in wins)
    return [
        _rate("winner_flip_rate", by_kind, kinds=dict(kinds), verdicts=dict(verdicts)),
        _worst("flip_regret", by_kind, winner_regrets),
        _rate("kernel_flip_rate", by_kernel, different=len(kernels)),
        _worst("kernel_regret", by_kernel, kernel_regrets),
        {"figure": "jobs", "value": len(wins), "each": [win.to_json() for win in wins]},
    ]


def regrets(chosen: Sequence[Candidate], times_us: Mapping[Candidate, Sequence[float]]) -> list[float]:
    """By how much each is slower than the best of them, relative, from shared rounds."""
    best_us = min((times_us[candidate] for candidate in chosen), key=median)
    return [median(paired_ratios(times_us[candidate], best_us)) - 1 for candidate in chosen]


def _rate(figure: str, flipped: Sequence[bool], **raw: Any) -> Row:
    num_flipped = sum(flipped)
    return {"figure": figure, "value": num_flipped / len(flipped), "flipped": num_flipped, "of": len(flipped), **raw}


def _worst(figure: str, flipped: Sequence[bool], every: Sequence[float]) -> Row:
    worst = max((regret for regret, is_flipped in zip(every, flipped, strict=True) if is_flipped), default=0.0)
    return {"figure": figure, "value": round(worst, 6), "median_of_all": round(median(every), 6), "each": every}


def win_of(best: Best, seed: int, job_s: float) -> Win:
    """What the finals of a job say.

    Raises:
        ValueError: none of ours has a time.
    """
    timed = sorted((row for row in best.finals if row.time_us is not None), key=lambda row: row.time_us or 0.0)
    ours = [row for row in timed if row.candidate.plan_kind.is_ours]
    if not ours:
        raise ValueError(f"no kernel of ours came through the finals of seed {seed}")
    winner = next(row for row in timed if row.candidate.plan_kind is best.winner)
    return Win(seed=seed, verdict=str(best.verdict), winner=winner, kernel=ours[0], job_s=job_s)


def run_job(service: Service, target_id: str, seed: int, num_trials: int) -> Win:
    """One job from its submission to its verdict.

    Raises:
        RuntimeError: it failed, or took too long.
    """
    budget = Budget(trials=num_trials, seconds=SEARCH_LIMIT_S)
    spec = JobSpec(
        workload=WORKLOAD,
        target_id=target_id,
        objective=PROBLEM.objective,
        budget=budget,
        seed=seed,
        priors=PriorsChoice.NONE,  # or each job would begin with what the one before it found
    )
    begin_s = time.monotonic()
    job, _ = service.submit(spec)
    while not job.state.is_final:
        if time.monotonic() - begin_s > JOB_LIMIT_S:
            raise RuntimeError(f"the job of seed {seed} is still {job.state} after {JOB_LIMIT_S:g} s {job.reason}")
        time.sleep(0.02)
        job = service.job(job.id)
    if job.state is not JobState.SUCCEEDED:
        raise RuntimeError(f"the job of seed {seed} ended {job.state}: {job.reason}")
    win = win_of(service.best(job.id), seed, time.monotonic() - begin_s)
    print(f"    {win.to_json()}", flush=True)
    return win


def last_contest(
    dispatcher: LocalDispatcher, target_id: str, wins: Sequence[Win]
) -> dict[Candidate, tuple[float, ...]]:
    """Microseconds of every winner and every kernel, in the same rounds.

    Raises:
        RuntimeError: one of them failed.
    """
    candidates = tuple(dict.fromkeys(row.candidate for win in wins for row in (win.winner, win.kernel)))
    times = dispatcher.lane(target_id).finals(PROBLEM, candidates, FinalsProcedure.num_rounds).result()
    by_candidate = {}
    for candidate, times_us, reason in zip(candidates, times.times_us, times.reasons, strict=True):
        if times_us is None:
            raise RuntimeError(f"a winner failed in the last contest: {reason}")
        by_candidate[candidate] = times_us
    return by_candidate


def measure_noise(evaluator: Evaluator, data: Path, out: Path, size: Size) -> list[Row]:
    """All rows, in the file after each part; `data` is a folder for the jobs.

    Raises:
        RuntimeError: a trial or a job failed, after prior results it was written.
    """
    begin_s = time.monotonic()
    target_id, machine = evaluator.target.id, machine_of(evaluator.environment())
    dispatcher = LocalDispatcher([evaluator])
    with closing(Service(Store.open(data), dispatcher)) as service:
        service.start()
        outcomes: list[Measured] = []
        for _ in range(size.num_repeats):
            prepared = dispatcher.builds(target_id).prepare(PROBLEM, CANDIDATE).result()
            if not isinstance(prepared, Prepared):
                raise RuntimeError(f"the candidate was not built: {prepared.reason}")
            outcome = dispatcher.lane(target_id).measure(PROBLEM, prepared).result()
            if not isinstance(outcome, Measured):
                raise RuntimeError(f"the candidate was not measured: {outcome.reason}")
            outcomes.append(outcome)
        rows = [trial_row(outcomes)]
        print(f"{time.monotonic() - begin_s:6.1f} s  {len(outcomes)} trials: spread {rows[0]['value']}", flush=True)
        write_report(out, rows, machine)
        wins: list[Win] = []
        for seed in range(size.num_jobs):
            if time.monotonic() - begin_s > LIMIT_S:
                print(f"{size.num_jobs - len(wins)} jobs are left out: {LIMIT_S:g} s are over")
                break
            wins.append(run_job(service, target_id, seed, size.num_trials))
        rows += winner_rows(wins, last_contest(dispatcher, target_id, wins))
        write_report(out, rows, machine)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the figures and writes the results file."""
    options = read_options(__doc__, arguments)
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = twin_of(options.gpu) or PlainSupervisor(usable_gpus()[0], Path(scratch) / "builds")
        out = options.out or results_file(evaluator.target.id, "noise")
        for row in measure_noise(evaluator, Path(scratch) / "data", out, QUICK if options.quick else Size()):
            print(f"{row['figure']:20} {row['value']}")


if __name__ == "__main__":
    main()
