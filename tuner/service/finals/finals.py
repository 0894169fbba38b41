"""Which candidates take part in the finals, and the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.core.problem.objective import FinalsProcedure, Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import FinalRow, Verdict, kernel_row
from tuner.core.trial.stats import compare, decide, median, relative_spread

#: Maximum number of additional finalists if the least energy is requested; each energy measurement takes over a second.
NUM_FOR_ENERGY = 8
#: Maximum number of given schedules that share the rounds of the finals: a whole sweep, or the fastest of a long list.
MAX_SHARED = 64
#: A time that is shorter by more than this share is clearly shorter. Compared with PyTorch's attention, one kind in
#: seven had such a trial, by up to 9 %; compared with cuBLASLt alone, none did.
CLEARLY_SHORTER = 0.02


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The result of the finals."""

    verdict: Verdict
    winner: PlanKind
    tie_band: float
    #: How the finals were held.
    procedure: FinalsProcedure
    #: One per finalist, library first.
    rows: tuple[FinalRow, ...]
    #: If set, the kernel with the least energy is chosen; it may be slower than the fastest by at most this percentage.
    energy_within_percent: float | None = None

    @property
    def kernel(self) -> FinalRow | None:
        """The finalist whose kernel is worth downloading."""
        return kernel_row(self.rows, self.winner, self.energy_within_percent)

    def to_json(self) -> dict[str, Any]:
        """The verdict and the kernel's figures relative to the library, for the manifest of `kernel`."""
        kernel = asdict(self.kernel) if self.kernel else {}
        figures = ("trial_number", "time_us", "spread", "speedup", "speedup_ci95", "energy_mj")
        return {
            "verdict": str(self.verdict),
            "winner": str(self.winner),
            "tie_band": self.tie_band,
            "procedure": asdict(self.procedure),
            "library_us": self.rows[0].time_us,
            **{name: value for name, value in kernel.items() if name in figures},
        }


def best_speedup(trials: Iterable[Trial], before: float | None = None) -> float | None:
    """Our best speed-up over the library, including `before`; None if there is none. Other candidates must come near
    it.

    The figure of a truncated trial is too imprecise to be a reference.
    """
    found = [
        trial.outcome.speedup
        for trial in trials
        if trial.candidate.plan_kind.is_ours and isinstance(trial.outcome, Measured) and not trial.outcome.truncated
    ]
    return max(found if before is None else [*found, before], default=None)


def near_the_fastest(history: Iterable[Trial], within_percent: float) -> tuple[Trial, ...]:
    """The fastest completely measured trials of generated kernels that are at most `within_percent` slower than the
    best. The finals choose the one with the least energy."""
    measured = [(trial.outcome, trial) for trial in history if isinstance(trial.outcome, Measured)]
    ours = [(outcome.speedup, trial) for outcome, trial in measured if trial.candidate.plan_kind.is_ours]
    best = best_speedup(trial for _, trial in ours) or 0.0
    near = [(speedup, trial) for speedup, trial in ours if speedup >= best / (1 + within_percent / 100)]
    near.sort(key=lambda item: (-item[0], item[1].number))
    return tuple(trial for _, trial in near[:NUM_FOR_ENERGY])


def given_ones(history: Iterable[Trial], given: Collection[Candidate]) -> tuple[Trial, ...]:
    """The measured trials of a job's given schedules. They are compared with each other, so all of them share rounds,
    or the fastest `MAX_SHARED` if there are more."""
    measured = ((trial.outcome, trial) for trial in history if isinstance(trial.outcome, Measured))
    ranked = sorted(
        (item for item in measured if item[1].candidate in given),
        key=lambda item: (item[0].truncated, -item[0].speedup, item[1].number),
    )
    return tuple(sorted((trial for _, trial in ranked[:MAX_SHARED]), key=lambda trial: trial.number))


def choose_finalists(history: Iterable[Trial], besides: Sequence[Trial] = ()) -> tuple[Trial, ...]:
    """The library, the best measured trials of each kind by their ratios to it, and `besides`. A truncated trial is
    included only if its kind has no other. The library's time drifts by up to a sixth, so a trial whose own time is
    clearly shorter is included, too, except under sustained load, where it may have run at a higher clock."""
    measured = [(trial.outcome, trial) for trial in history if isinstance(trial.outcome, Measured)]
    measured.sort(key=lambda item: (item[0].truncated, -item[0].speedup, item[1].number))
    chosen = [
        trial
        for kind in PlanKind
        for trial in _of_kind([item for item in measured if item[1].candidate.plan_kind is kind], kind.num_finalists)
    ]
    numbers = {trial.number for trial in chosen}
    more = {trial.number: trial for trial in besides if trial.number not in numbers}
    return (*chosen, *more.values())


def _of_kind(ranked: Sequence[tuple[Measured, Trial]], count: int) -> list[Trial]:
    """The first `count` trials, and the trial with the shortest time if the others are clearly slower."""
    chosen = _first(ranked, count)
    is_sustained = any(outcome.procedure and outcome.procedure.regime is Regime.SUSTAINED for outcome, _ in ranked)
    if is_sustained or not all(trial.candidate.plan_kind.is_ours for trial in chosen):
        return chosen
    whole = {trial.number: (outcome.time_us, trial) for outcome, trial in ranked if not outcome.truncated}
    shortest_us = min((whole[trial.number][0] for trial in chosen if trial.number in whole), default=0.0)
    time_us, fastest = min(whole.values(), key=lambda item: item[0], default=(0.0, None))
    return [*chosen, *([fastest] if fastest and time_us < (1 - CLEARLY_SHORTER) * shortest_us else [])]


def _first(ranked: Sequence[tuple[Measured, Trial]], count: int) -> list[Trial]:
    """The first `count` trials with complete rounds; if there are none, the first trial."""
    whole = [trial for outcome, trial in ranked if not outcome.truncated]
    return whole[:count] or [trial for _, trial in ranked[:1]]


def judge(
    finalists: Sequence[Trial],
    times: FinalsTimes,
    procedure: FinalsProcedure,
    energies_mj: Sequence[float | None] | None = None,
) -> Judgement:
    """The verdict of finals held with `procedure`. The first finalist is the library, which must have times.
    `energies_mj` are the finalists' energies, if already measured."""
    rows, by_kind = [], dict[PlanKind, tuple[float, ...]]()
    library_us = times.times_us[0]
    assert library_us is not None
    figures = zip(finalists, times.times_us, times.reasons, energies_mj or (None,) * len(finalists), strict=True)
    for trial, times_us, reason, energy_mj in figures:
        row = _row(trial, times_us, library_us, reason, times.process_of_round)
        rows.append(replace(row, energy_mj=energy_mj, num_dropped=times.num_dropped))
        kind = trial.candidate.plan_kind
        if times_us and (kind not in by_kind or median(times_us) < median(by_kind[kind])):
            by_kind[kind] = times_us
    decision = decide(by_kind, times.process_of_round, min_tie_band=procedure.min_tie_band)
    return Judgement(
        verdict=decision.verdict,
        winner=decision.winner,
        tie_band=decision.tie_band,
        procedure=procedure,
        rows=tuple(rows),
    )


def _row(
    trial: Trial,
    times_us: tuple[float, ...] | None,
    library_us: tuple[float, ...],
    reason: str,
    process_of_round: tuple[int, ...],
) -> FinalRow:
    against = compare(times_us, library_us, process_of_round) if times_us else None
    return FinalRow(
        candidate=trial.candidate,
        trial_number=trial.number,
        time_us=median(times_us) if times_us else None,
        spread=relative_spread(times_us) if times_us else None,
        speedup=against.speedup if against else None,
        speedup_ci95=against.ci95 if against else None,
        reason=reason,
        num_rounds=len(times_us) if times_us else 0,
    )
