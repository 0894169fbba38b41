"""The results file of the pairs: a row per pair and m, made of a job's finals; rows of this commit and kernel stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import Ended
from benchmarks.common.report import rows_of_this_build, write_report
from benchmarks.common.rows import ROWS, SUITES, Row
from benchmarks.pairs.summary import summarise
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import FinalRow
from tuner.errors import TunerError


def row_of(row: Row, ended: Ended) -> dict[str, Any]:
    """The row's figures, all of them of the job's finals.

    Raises:
        TunerError: there are no times of the library, or none of a fused launch.
    """
    best: dict[PlanKind, FinalRow] = {}
    for final in sorted(ended.best.finals, key=lambda final: -(final.time_us or 0.0)):
        if final.time_us is not None:
            best[final.candidate.plan_kind] = final
    kind_us = {str(kind): best[kind].time_us or 0.0 for kind in PlanKind if kind in best}
    reasons = [one.reason for one in ended.best.finals if one.reason]
    if PlanKind.LIBRARY not in best or not any(kind.is_fused for kind in best):
        raise TunerError(f"no library or no fused launch came through: {reasons}")
    ours = min((kind for kind in best if kind.is_fused), key=lambda kind: kind_us[str(kind)])
    winner = best[ended.best.winner]
    finals, library = list(best.values()), str(PlanKind.LIBRARY)
    figures: dict[str, Any] = {
        "suite": row.suite,
        "pair": row.pair,
        "m": row.m,
        "regime": ended.job.spec.objective.regime,
        "kind_us": {kind: round(time_us, 3) for kind, time_us in kind_us.items()},
        "verdict": ended.best.verdict,
        "winner": ended.best.winner,
        "verdict_speedup": round(winner.speedup or 0.0, 4),
        "tie_band": round(ended.best.tie_band, 4),
        "reference_us": round(row.reference_us, 2),
        "over_reference": round(min(us for kind, us in kind_us.items() if kind != library) / row.reference_us, 3),
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
    for kind, name, interval in (
        (PlanKind.FUSED, "fused_speedup", "ci95"),
        (PlanKind.FUSED_PDL, "fused_speedup_pdl", "ci95_pdl"),
    ):
        if kind in best and (ci95 := best[kind].speedup_ci95):
            figures |= {name: round(best[kind].speedup or 0.0, 4), interval: [round(end, 4) for end in ci95]}
    if energies := {str(kind): round(one.energy_mj, 2) for kind, one in best.items() if one.energy_mj is not None}:
        figures["energy_mj"] = energies
    if row.workload.kind is WorkloadKind.INDEPENDENT:
        figures |= _library_figures(ended.trials[0])
    return figures


def _rel_error(trials: Sequence[Trial], finals: Sequence[FinalRow]) -> float:
    """The worst of the finalists' outputs, when they were tried."""
    outcomes = {trial.number: trial.outcome for trial in trials}
    measured = [outcome for one in finals if isinstance(outcome := outcomes[one.trial_number], Measured)]
    return max((outcome.rel_error for outcome in measured), default=0.0)


def _library_figures(library: Trial) -> dict[str, float]:
    """The library's times on one stream and on two; its own row is the better of both."""
    metrics = library.outcome.metrics if isinstance(library.outcome, Measured) else ()
    return {m.tag: round(m.value, 3) for m in metrics if m.tag.startswith("library_") and m.tag.endswith("_us")}


class Results:
    """The results file: rows by name, those of this commit and kernel that lie there already included."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self._rows = {name_of(row): row for row in rows_of_this_build(path, machine)}
        self.failures: dict[str, str] = {}

    def num_trials(self, name: str, priors: str) -> int:
        """Of the job that the row is of; 0 where there is no such row, or one of a job with other priors."""
        row = self._rows.get(name, {})
        return int(row.get("trials", 0)) if row.get("priors") == priors else 0

    def get(self, name: str) -> dict[str, Any] | None:
        """The row of that name, if there is one."""
        return self._rows.get(name)

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Adds or replaces a row and writes the file."""
        self._rows[name] = row
        self.failures.pop(name, None)
        self._write()

    def fail(self, name: str, reason: str) -> None:
        """Notes that a row came to nothing; a file without rows is not written."""
        self.failures[name] = reason
        if self._rows:
            self._write()

    def _write(self) -> None:
        rows = [self._rows[one.name] for one in ROWS if one.name in self._rows]
        suites = {suite: summarise(suite, rows) for suite in SUITES}
        complete = len(rows) == len(ROWS)
        meta = {**self._machine, "complete": complete, "failures": self.failures, "suites": suites}
        write_report(self._path, rows, meta)

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Of the suites that have a row."""
        rows = list(self._rows.values())
        return {suite: summarise(suite, rows) for suite in SUITES if any(row["suite"] == suite for row in rows)}


def name_of(row: dict[str, Any]) -> str:
    """As `Row.name`."""
    return f"{row['suite']}/{row['pair']}/m{row['m']}"
