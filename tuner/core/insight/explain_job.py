"""What a job measured, compared with the forecast: sentences for the explanation of its best fused schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tuner.core.insight.explain import differences
from tuner.core.insight.forecast_quality import NUM_TRUSTED, ForecastQuality, forecast_of
from tuner.core.insight.policy_times import policies_sentence
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Best, FinalRow


def best_fused(finals: Iterable[FinalRow]) -> FinalRow | None:
    """The finalist to explain: the fastest fused one, or the first if none finished the finals."""
    fused = [row for row in finals if row.candidate.plan_kind.is_fused]
    return min(fused, key=lambda row: float("inf") if row.time_us is None else row.time_us, default=None)


def best_to_explain(finals: Iterable[FinalRow]) -> FinalRow | None:
    """Same as `best_fused`, or our fastest finalist if no single launch computes the whole workload."""
    rows = list(finals)
    ours = [row for row in rows if row.candidate.plan_kind.is_ours]
    fastest = min(ours, key=lambda row: float("inf") if row.time_us is None else row.time_us, default=None)
    return best_fused(rows) or fastest


def explain_job(best: Best, chosen: FinalRow, trials: Sequence[Trial], quality: ForecastQuality) -> list[str]:
    """Sentences about `chosen`, one of the finalists of `best`; `trials` are all trials of the job."""
    forecasts = {trial.number: forecast for trial in trials if (forecast := forecast_of(trial.outcome)) is not None}
    return [
        _measured(best, chosen, forecasts.get(chosen.trial_number)),
        _beside(best, chosen, forecasts),
        *_next_measured(chosen, trials),
        *_own_programs(best),
        *_policies(best),
        _forecasts(quality),
    ]


def _measured(best: Best, chosen: FinalRow, forecast_us: float | None) -> str:
    mark = " (simulated)" if best.environment.simulated else ""
    kind = _words(chosen)
    if chosen.time_us is None:
        return f"Measured{mark}: {kind} was not timed in the finals: {chosen.reason}."
    speed = f", {chosen.speedup:.2f} times the library's speed" if chosen.speedup is not None else ""
    sentence = f"Measured{mark}: {kind} {chosen.time_us:.1f} us in the finals{speed}; {_of_bound(best, chosen.time_us)}"
    if forecast_us is None:
        return f"{sentence}; its trial has no stored forecast."
    return f"{sentence}; forecast {forecast_us:.1f} us, so it took {chosen.time_us / forecast_us:.2f} times as long."


def _of_bound(best: Best, time_us: float) -> str:
    return f"{best.reference_us / time_us:.0%} of the data sheet's bound"


def _beside(best: Best, chosen: FinalRow, forecasts: dict[int, float]) -> str:
    """The fastest finalist of each other plan kind, and the verdict."""
    fastest: dict[str, FinalRow] = {}
    for row in best.finals:
        known = fastest.get(_words(row))
        if row.time_us is not None and (known is None or row.time_us < (known.time_us or 0.0)):
            fastest[_words(row)] = row
    fastest.pop(_words(chosen), None)
    rows = [f"{kind} {row.time_us:.1f} us{_forecast(forecasts.get(row.trial_number))}" for kind, row in fastest.items()]
    speedup = None if best.winner_row is None else best.finals[best.winner_row].speedup
    mark = " (simulated)" if best.environment.simulated else ""
    return f"Compared with{mark}: {'; '.join(rows) or 'nothing'}. Recommendation: {best.winner.at_speed(speedup)}."


def _forecast(forecast_us: float | None) -> str:
    return "" if forecast_us is None else f" (forecast {forecast_us:.1f})"


def _words(row: FinalRow) -> str:
    return row.candidate.plan_kind.heading


def _next_measured(chosen: FinalRow, trials: Sequence[Trial]) -> Iterator[str]:
    """The fastest other trial of the same kind, judged by the trials' own speed-ups, and how it differs."""
    measured = [
        (trial.outcome.speedup, trial)
        for trial in trials
        if trial.candidate.plan_kind is chosen.candidate.plan_kind and isinstance(trial.outcome, Measured)
    ]
    own = next((speedup for speedup, trial in measured if trial.number == chosen.trial_number), None)
    others = [(speedup, trial) for speedup, trial in measured if trial.number != chosen.trial_number]
    if own is None or not others:
        return
    speedup, other = max(others, key=lambda pair: pair[0])
    assert chosen.candidate.schedule is not None
    assert other.candidate.schedule is not None
    changes = ", ".join(differences(chosen.candidate.schedule, other.candidate.schedule))
    ratio = own / speedup - 1
    than = f"{ratio:.1%} slower" if ratio >= 0 else f"{-ratio:.1%} faster in its trial"
    yield f"Next best measured: trial {other.number}, {than}: {changes}."


def _policies(best: Best) -> Iterator[str]:
    if best.policies:
        yield policies_sentence(best.policies, simulated=best.environment.simulated)


def _own_programs(best: Best) -> Iterator[str]:
    """The user's own programs that were timed after the finals."""
    found = []
    for one in best.baselines:
        if one.time_us is None:
            found.append(f"{one.name} was not timed: {one.reason}")
            continue
        ahead = "" if one.winner_speedup is None else f", {one.winner_speedup:.2f} times the winner's time"
        found.append(f"{one.name} {one.time_us:.1f} us{ahead}")
    if found:
        yield f"Your own programs, in rounds with all finalists: {'; '.join(found)}."


def _forecasts(quality: ForecastQuality) -> str:
    if quality.rank_correlation is None or quality.regret is None:
        return f"Forecasts of this job: {quality.reason}."
    return (
        f"Forecasts of this job: rank correlation {quality.rank_correlation:.2f} with the measured times of "
        f"{quality.num_trials} fused trials; the best of the {NUM_TRUSTED} shortest forecasts is {quality.regret:.1%} "
        "slower than the best measured."
    )
