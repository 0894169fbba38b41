"""Writes the winners that ship with the program: the best schedules of each row and plan kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import Ended
from benchmarks.common.report import commit, results_file
from tuner.core.legal.legality import check_candidate
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import space_of
from tuner.core.trial.job import Objective, PriorsChoice, Trial, default_regime
from tuner.core.trial.outcome import Measured, Rejected
from tuner.errors import IllegalSchedule
from tuner.search.joined import joined_guesses
from tuner.workers.builder.nvrtc import write_atomically

#: Number of winners kept per kind; fused kinds come first.
NUM_KEPT = {
    kind: 3 if kind.is_fused else 2 for kind in sorted(PlanKind, key=lambda kind: not kind.is_fused) if kind.is_ours
}
#: Maximum number of reasons listed for unmeasured trials, and the maximum length of each.
NUM_REASONS, REASON_LENGTH = 5, 200


def best_of(ended: Ended) -> dict[PlanKind, list[dict[str, Any]]]:
    """Our best of each kind: first finalists by their times in the finals, then others by their trials' times. Trials
    that ended early come last."""
    return {kind: found for kind, count in NUM_KEPT.items() if (found := list(_ranked(ended, kind))[:count])}


def _ranked(ended: Ended, kind: PlanKind) -> Iterator[dict[str, Any]]:
    outcomes = {
        trial.candidate: trial.outcome
        for trial in ended.trials
        if isinstance(trial.outcome, Measured) and trial.candidate.plan_kind is kind
    }
    finals = [(one.time_us, one) for one in ended.best.finals if one.time_us and one.candidate in outcomes]
    for time_us, one in sorted(finals, key=lambda item: item[0]):
        outcome = outcomes.pop(one.candidate, None)
        if outcome is not None and one.speedup is not None:
            yield _entry(one.candidate, time_us, one.speedup, outcome.rel_error)
    lost = {one.candidate for one in ended.best.finals if one.time_us is None}
    others = [(outcome, candidate) for candidate, outcome in outcomes.items() if candidate not in lost]
    for outcome, candidate in sorted(others, key=lambda item: (item[0].truncated, item[0].time_us)):
        yield _entry(candidate, outcome.time_us, outcome.speedup, outcome.rel_error)


def _entry(candidate: Candidate, time_us: float, speedup: float, rel_error: float) -> dict[str, Any]:
    schedule = candidate.schedule
    assert schedule is not None
    return {
        "schedule": schedule.to_json(),
        "text": str(schedule),
        "time_us": round(time_us, 3),
        "speedup": round(speedup, 4),
        "rel_error": rel_error,
    }


def provenance(ended: Ended) -> dict[str, Any]:
    """The origin of a row: trials, their outcomes, the program and the card."""
    environment, job = ended.best.environment, ended.job
    return {
        "trials": job.num_trials,
        "measured": job.num_measured,
        "rejected": job.num_rejected,
        "failed": job.num_failed,
        "reasons": reasons_of(ended.trials),
        "priors": sum(trial.prior is not None for trial in ended.trials),
        "seed": job.spec.seed,
        "library_us": job.library_us and round(job.library_us, 3),
        "search_s": round(job.search_s, 1),
        "gpu": environment.gpu_name,
        "driver": environment.driver,
        "kernel_version": environment.kernel_version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def reasons_of(trials: Sequence[Trial]) -> list[str]:
    """Why trials were not measured: a few of the reasons, without duplicates."""
    reasons = {
        f"{'rejected' if isinstance(trial.outcome, Rejected) else trial.outcome.kind}: {trial.outcome.reason}"
        for trial in trials
        if not isinstance(trial.outcome, Measured)
    }
    return sorted(reason[:REASON_LENGTH] for reason in reasons)[:NUM_REASONS]


class Winners:
    """The file of one GPU: a row per name, sorted."""

    def __init__(self, path: Path) -> None:
        """Reads the file, if there is one."""
        self._path = path
        self._rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, name: str, workload: Workload, ended: Ended) -> None:
        """Replaces the row of that name and writes the file. A search without priors did not try the existing winners,
        so it keeps them."""
        if name in self._rows and ended.job.spec.priors is PriorsChoice.NONE:
            return
        asked = {"workload": workload.to_json(), "objective": asdict(ended.job.spec.objective)}
        by_kind = {str(kind): found for kind, found in best_of(ended).items()}
        self._rows[name] = {**provenance(ended), **asked, "winners": by_kind}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, _text(self._rows).encode())


def merge_winners(path: Path, others: Sequence[Path]) -> None:
    """Adds the rows of other files to that of the same GPU; if a row occurs several times, the last one is kept."""
    for other in others:
        put_rows(path, json.loads(other.read_text()))


def put_rows(path: Path, others: dict[str, dict[str, Any]]) -> None:
    """Adds rows, or replaces those of the same names."""
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    write_atomically(path, _text(rows | others).encode())


def ship_report(name: str, target_id: str, folder: Path, group: str, workloads: Mapping[str, Workload]) -> None:
    """Adds the rows of a report of jobs, each with its workload, to the winners that ship with the program."""
    report, gpu = json.loads(results_file(target_id, name).read_text()), CATALOGUE[target_id]
    meta = {key: report["meta"][key] for key in ("commit", "date", "driver", "gpu")}
    rows = {
        f"{group}/{line['row']}": _row_of(meta | line | line.get("run", {}), workloads[line["row"]], gpu, name)
        for line in report["rows"]
    }
    put_rows(folder / f"{target_id}.json", rows)


def _row_of(line: dict[str, Any], workload: Workload, gpu: Gpu, report: str) -> dict[str, Any]:
    """The fastest schedule of each plan kind in a report's line, as a row of winners. Those that the rules no longer
    allow are left out, and so are lines that only a kind of op can read, unless its search guesses that schedule."""
    winners, library_us = {}, line["kind_us"]["library"]
    for name, text in sorted(line["schedules"].items()):
        kind = PlanKind(name)
        guessed = joined_guesses(space_of(workload, gpu), 0) if kind.is_joined else ()
        schedule = next((one.schedule for one in guessed if str(one.schedule) == text), None)
        schedule = schedule if kind.is_joined else read_line(text)
        try:
            check_candidate(workload, gpu, Candidate(plan_kind=kind, schedule=schedule))
        except (IllegalSchedule, ValueError):
            continue
        assert schedule is not None
        us = line["kind_us"][name]
        figures = {"text": text, "time_us": us, "speedup": round(library_us / us, 4), "rel_error": line["rel_error"]}
        winners[name] = [{"schedule": schedule.to_json(), **figures}]
    asked = {"workload": workload.to_json(), "objective": asdict(Objective(regime=default_regime(workload)))}
    remark = f"from {report}.json"
    origin = {key: line[key] for key in ("commit", "date", "driver", "gpu", "trials", "search_s")}
    return {**origin, **asked, "library_us": library_us, "remark": remark, "winners": winners}


def _text(rows: dict[str, dict[str, Any]]) -> str:
    """JSON with sorted keys; a row's figures are on one line, and so is each winner."""
    texts = []
    for name, row in sorted(rows.items()):
        figures = json.dumps({key: value for key, value in row.items() if key != "winners"}, sort_keys=True)
        kinds = [
            f'  "{kind}": [\n' + ",\n".join(f"   {json.dumps(one, sort_keys=True)}" for one in found) + "]"
            for kind, found in sorted(row["winners"].items())
        ]
        texts.append(f' {json.dumps(name)}: {figures[:-1]}, "winners": {{\n' + ",\n".join(kinds) + "}}")
    return "{\n" + ",\n".join(texts) + "\n}\n"
