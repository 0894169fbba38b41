"""Reads the built-in winners, a file per measured GPU.

A file is JSON: a row per problem, by name. A row has the `workload` and the `objective` that were searched, and the
best candidates of each plan kind (`winners`) with their times. Its other keys describe the origin: the card's name, the
digest of the kernel sources, commit, date, trials, and a remark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import Objective
from tuner.core.trial.priors import Found, KnownFinals

#: The folder of the files.
FOLDER = Path(__file__).parent
#: Results of finals, a file per GPU; written by `benchmarks.pairs.shipped_finals`.
FINALS = FOLDER / "finals"


class ShippedWinners:
    """The winners of all measured GPUs; a file is read when it is first needed."""

    def __init__(self, folder: Path = FOLDER) -> None:
        """`folder` has a file ``<target>.json`` per target."""
        self._folder = folder

    def of(self, target_id: str) -> Sequence[Found]:
        """The winners of a target, and for problems that were not searched on it, those of similar cards; none if no
        similar card has a file, as for simulated targets."""
        own = self._rows(target_id)
        found = [one for name, row in own.items() for one in found_in(name, row)]
        for other in _like(target_id):
            rows = self._rows(other)
            found += [one for name in rows if name not in own for one in found_in(f"{other}/{name}", rows[name])]
        return tuple(found)

    def _rows(self, target_id: str) -> dict[str, dict[str, Any]]:
        path = self.path(target_id)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def finals(self, target_id: str) -> Mapping[str, KnownFinals]:
        """Results of finals on a target, by the source of the winners."""
        path = self._folder / FINALS.name / self.path(target_id).name
        if not path.is_file():
            return {}
        names = [field.name for field in fields(KnownFinals)]
        return {
            f"shipped {name}": KnownFinals(
                **{key: row[key] for key in names if key not in ("winner", "ours")},
                winner=PlanKind(row["winner"]),
                ours=PlanKind(row["ours"]),
            )
            for name, row in json.loads(path.read_text(encoding="utf-8")).items()
        }

    def path(self, target_id: str) -> Path:
        """The file of a target."""
        return self._folder / f"{target_id.replace(':', '-')}.json"


def _like(target_id: str) -> list[str]:
    """Other cards with as many SMs of the same architecture, which differ only in memory and clocks."""
    gpu = CATALOGUE.get(target_id)
    if gpu is None:
        return []
    others = (one for one in CATALOGUE.values() if one.id != target_id)
    return [one.id for one in others if (one.num_sms, one.compute_capability) == (gpu.num_sms, gpu.compute_capability)]


def found_in(name: str, row: dict[str, Any]) -> list[Found]:
    """The winners of one row, by plan kind, fastest first; none if a kind of op is not known here."""
    workload = Workload.from_json(row["workload"])
    if workload.unknown_kinds:
        return []
    objective = Objective(l2=CacheState(row["objective"]["l2"]), regime=Regime(row["objective"]["regime"]))
    return [
        Found(
            workload=workload,
            objective=objective,
            candidate=Candidate(plan_kind=PlanKind(kind), schedule=Schedule.from_json(data["schedule"])),
            time_us=data["time_us"],
            speedup=data["speedup"],
            source=f"shipped {name}",
            kernel_version=row.get("kernel_version") or "",
        )
        for kind, ranked in row["winners"].items()
        for data in ranked
    ]
