"""From samples to the figures of a trial: the valid rounds, their statistics, and when there are enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.problem.objective import Procedure, Regime
from tuner.core.trial.outcome import Measured, Metric
from tuner.core.trial.samples import (
    DropReason,
    Round,
    kept,
    num_dropped,
    previews,
    speedups,
    speedups_at_one_clock,
    whole,
)
from tuner.core.trial.stats import median, relative_spread

from .clocks import Sample, drop_reasons
from .stop_rules import BEHIND, PREVIEW, HopelessRule, StopRule

#: If fewer rounds than this are valid, all are used, and the trial says so.
MIN_KEPT = 3


def to_rounds(candidate: Sequence[Sample], library: Sequence[Sample] | None, regime: Regime) -> tuple[Round, ...]:
    """The rounds of a trial; `library` is None if the candidate is the library."""
    reasons = drop_reasons([candidate] if library is None else [candidate, library], regime)
    return tuple(
        Round(
            time_us=one.time_us,
            library_us=None if library is None else library[i].time_us,
            clock_mhz=one.clock_mhz,
            library_clock_mhz=0 if library is None else library[i].clock_mhz,
            dropped=reason,
        )
        for i, (one, reason) in enumerate(zip(candidate, reasons, strict=True))
    )


def to_previews(candidate: Sequence[Sample], library: Sequence[Sample]) -> tuple[Round, ...]:
    """The rounds of a preview."""
    return tuple(
        Round(
            time_us=one.time_us,
            library_us=beside.time_us,
            clock_mhz=one.clock_mhz,
            library_clock_mhz=beside.clock_mhz,
            dropped=DropReason.PREVIEW,
        )
        for one, beside in zip(candidate, library, strict=True)
    )


def is_hopeless_by(rounds: Sequence[Round], incumbent_speedup: float | None, rule: HopelessRule = PREVIEW) -> bool:
    """Whether a preview shows that a candidate is clearly slower, so that no round is run."""
    return rule.is_hopeless(speedups_at_one_clock(previews(rounds)), incumbent_speedup)


def is_previewed_enough(rounds: Sequence[Round], incumbent_speedup: float | None, rule: HopelessRule = PREVIEW) -> bool:
    """Whether a preview need not continue: more samples would not change the result of `is_hopeless_by`."""
    return rule.is_settled(speedups_at_one_clock(previews(rounds)), incumbent_speedup)


def counting_together(tracks: Sequence[Sequence[Sample]], num_rounds: int, regime: Regime) -> list[int]:
    """Which rounds of [graph][round] samples are used, of `num_rounds` that are requested: a round is used for all
    graphs or for none, so that any two stay paired. If too few are valid, all are used."""
    reasons = drop_reasons(tracks, regime)
    found = [i for i, reason in enumerate(reasons) if reason is None]
    return found if len(found) >= min(MIN_KEPT, num_rounds) else list(range(len(reasons)))


def are_enough_together(tracks: Sequence[Sequence[Sample]], num_rounds: int, regime: Regime) -> bool:
    """Whether `num_rounds` rounds are valid; up to a third more, rounded up, replace invalid ones."""
    num_taken = len(tracks[0])
    if num_taken < num_rounds or 3 * num_taken >= 4 * num_rounds:
        return num_taken >= num_rounds
    return drop_reasons(tracks, regime).count(None) >= num_rounds


def counting(rounds: Sequence[Round]) -> Sequence[Round]:
    """The rounds that figures are computed from: the valid ones, or all if too few are valid; those of a preview if
    there are no others."""
    found = kept(rounds)
    return found if len(found) >= MIN_KEPT else whole(rounds) or rounds


def telling(rounds: Sequence[Round]) -> Sequence[Round]:
    """The rounds that decide when to stop: the valid ones, or all if the driver slows the card down in most of them.
    More such rounds would be dropped, too."""
    slowed = [one for one in rounds if one.dropped is DropReason.SLOWDOWN]
    return whole(rounds) if 2 * len(slowed) > len(rounds) else kept(rounds)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """When the rounds of one trial end."""

    stop: StopRule
    hopeless: HopelessRule
    #: The best speed-up so far; None if there is none, or the candidate is the library.
    incumbent_speedup: float | None = None

    def is_truncation(self, rounds: Sequence[Round]) -> bool:
        """Whether the candidate is certainly far worse than the incumbent."""
        return self.hopeless.is_hopeless(speedups(telling(rounds)), self.incumbent_speedup)

    def is_enough(self, rounds: Sequence[Round], elapsed_s: float) -> bool:
        """Whether the figure (the ratio to the library, or the library's own time) is known well enough for its rank,
        or has cost enough: a candidate that is certainly slower than the incumbent needs few rounds. Does not apply to
        truncation."""
        counted = telling(rounds)
        figures = speedups(counted) if _has_library(counted) else [one.time_us for one in counted]
        if self.is_truncation(rounds):
            return False
        is_behind = BEHIND.is_hopeless(speedups(counted), self.incumbent_speedup)
        return is_behind or self.stop.is_over(figures, elapsed_s, num_taken=len(rounds))


def summary(
    rounds: Sequence[Round], procedure: Procedure, *, truncated: bool, library_us: float | None = None
) -> Measured:
    """The figures of a trial; `rel_error` and `stage_s` are not filled in.

    For a preview alone, only the ratio at one clock is meaningful: the time is that ratio times `library_us`, the
    library's in earlier rounds.
    """
    counted = counting(rounds)
    times_us = [one.time_us for one in counted]
    libraries_us = [one.library_us for one in counted if one.library_us is not None]
    time_us, base_us = median(times_us), median(libraries_us or times_us)
    speedup = median(speedups(counted) if whole(rounds) else speedups_at_one_clock(counted))
    if library_us is not None and not whole(rounds):
        time_us, base_us = library_us / speedup, library_us
    return Measured(
        time_us=time_us,
        library_us=base_us,
        speedup=speedup,
        spread=relative_spread(times_us),
        rounds=tuple(rounds),
        rel_error=0.0,
        metrics=_metrics(rounds),
        procedure=procedure,
        truncated=truncated,
        remark=_remark(rounds),
    )


def _has_library(rounds: Sequence[Round]) -> bool:
    return any(one.library_us is not None for one in rounds)


def _metrics(rounds: Sequence[Round]) -> tuple[Metric, ...]:
    """Counts of rounds, and the clocks of those that the figures are computed from."""
    counted = counting(rounds)
    clocks = {
        "sm_clock": [one.clock_mhz for one in counted if one.clock_mhz],
        "library_sm_clock": [one.library_clock_mhz for one in counted if one.library_clock_mhz],
    }
    dropped = num_dropped(rounds)
    return (
        Metric(tag="num_rounds", unit="", value=len(whole(rounds))),
        *(Metric(tag=f"dropped_{reason}", unit="", value=dropped[reason]) for reason in DropReason if dropped[reason]),
        *(Metric(tag=tag, unit="MHz", value=median(values)) for tag, values in clocks.items() if values),
    )


def _remark(rounds: Sequence[Round]) -> str:
    """What limits the quality of the figures: there is only a preview, or more than half of the rounds were dropped."""
    if rounds and not whole(rounds):
        return f"it was clearly slower in {len(rounds)} short samples; no round was run"
    dropped, rounds = num_dropped(rounds), whole(rounds)
    if 2 * dropped.total() <= len(rounds):
        return ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.most_common())
    used = "" if len(kept(rounds)) >= MIN_KEPT else "; its figures are those of all rounds"
    return f"{dropped.total()} of {len(rounds)} rounds were dropped ({reasons}){used}"
