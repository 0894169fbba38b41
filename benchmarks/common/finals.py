"""A job's finals as figures of a results file: the same columns for pairs and for chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common.jobs import Ended
from benchmarks.common.reference import rates_of, reference_us
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import FinalRow
from tuner.core.trial.reports.torch_time import TorchTime
from tuner.errors import TunerError


def best_of_kinds(ended: Ended) -> dict[PlanKind, FinalRow]:
    """Each kind's fastest finalist."""
    best: dict[PlanKind, FinalRow] = {}
    for final in sorted(ended.best.finals, key=lambda final: -(final.time_us or 0.0)):
        if final.time_us is not None:
            best[final.candidate.plan_kind] = final
    return best


def figures_of(ended: Ended) -> dict[str, Any]:
    """Times, verdict, schedules and counts; also our time over the reference, if the card's rates are known.

    Raises:
        TunerError: there are no times of the library, or none of a launch of all ops.
    """
    best, is_one = best_of_kinds(ended), len(ended.job.spec.workload.ops) == 1
    of_all = [kind for kind in best if kind.is_fused or (kind.is_ours and is_one)]
    kind_us = {str(kind): best[kind].time_us or 0.0 for kind in PlanKind if kind in best}
    reasons = [one.reason for one in ended.best.finals if one.reason]
    if PlanKind.LIBRARY not in best or not of_all:
        raise TunerError(f"neither the library nor a fused launch was measured: {reasons}")
    ours = min(of_all, key=lambda kind: kind_us[str(kind)])
    winner = best[ended.best.winner]
    finals, library = list(best.values()), str(PlanKind.LIBRARY)
    figures: dict[str, Any] = {
        "kind_us": {kind: round(time_us, 3) for kind, time_us in kind_us.items()},
        "verdict": ended.best.verdict,
        "winner": ended.best.winner,
        "verdict_speedup": round(winner.speedup or 0.0, 4),
        "tie_band": round(ended.best.tie_band, 4),
        "schedule": str(best[ours].candidate.schedule),
        "schedules": {str(kind): str(one.candidate.schedule) for kind, one in best.items() if kind.is_ours},
        "num_rounds": max(one.num_rounds for one in finals),
        "num_dropped": max(one.num_dropped for one in finals),
        "reasons": reasons,
        "rel_error": _rel_error(ended.trials, finals),
        "trials": ended.job.num_trials,
        "priors": str(ended.job.spec.priors),
        "search_s": round(ended.job.search_s, 1),
        "wall_s": round((ended.job.finished_at or 0.0) - (ended.job.started_at or 0.0), 1),
    }
    if (rates := rates_of(ended.job.spec.target_id)) is not None:
        fastest_us = min(us for kind, us in kind_us.items() if kind != library)
        least_us = reference_us(ended.job.spec.workload, rates)
        figures |= {"reference_us": round(least_us, 2), "over_reference": round(fastest_us / least_us, 3)}
    for kind, name, interval in (
        (PlanKind.FUSED, "fused_speedup", "ci95"),
        (PlanKind.FUSED_PDL, "fused_speedup_pdl", "ci95_pdl"),
    ):
        if kind in best and (ci95 := best[kind].speedup_ci95):
            figures |= {name: round(best[kind].speedup or 0.0, 4), interval: [round(end, 4) for end in ci95]}
    if ended.best.torch is not None:
        figures |= torch_figures(ended.best.torch)
    if energies := {str(kind): round(one.energy_mj, 2) for kind, one in best.items() if one.energy_mj is not None}:
        figures["energy_mj"] = energies
    return figures


def torch_figures(torch: TorchTime) -> dict[str, Any]:
    """torch.compile's time, its ratio to the vendor library's, and which of the two is the library of the finals; null
    with a reason if there is no time."""
    if torch.time_us is None or torch.library_speedup is None:
        return {"torch_compile_us": None, "torch_reason": torch.reason}
    return {
        "torch_compile_us": round(torch.time_us, 3),
        "torch_over_library": round(torch.library_speedup, 4),
        "torch_is_library": torch.is_library,
    }


def _rel_error(trials: Sequence[Trial], finals: Sequence[FinalRow]) -> float:
    """The maximum error of the finalists' outputs, from their trials."""
    outcomes = {trial.number: trial.outcome for trial in trials}
    measured = [outcome for one in finals if isinstance(outcome := outcomes[one.trial_number], Measured)]
    return max((outcome.rel_error for outcome in measured), default=0.0)
