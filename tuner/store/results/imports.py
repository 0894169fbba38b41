"""Winners of external searches, which are priors of later jobs but never trials or results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.problem.workload import Workload
from tuner.core.trial.job import CacheState, Objective, Regime
from tuner.core.trial.priors import Found
from tuner.store.tables.encoding import candidate_from_json, candidate_to_json
from tuner.store.tables.models import ImportedWinnerRow

#: Maximum number of a target's winners that are considered, newest first; a file for one job has about a dozen.
MAX_KNOWN = 256


def add(session: Session, target_id: str, winners: Sequence[Found], owner: str, now: float) -> int:
    """Stores the winners that are new; returns their number."""
    rows = {_digest(target_id, data): data for data in map(_to_json, winners)}
    query = select(ImportedWinnerRow.digest).where(ImportedWinnerRow.digest.in_(rows))
    new = rows.keys() - set(session.scalars(query))
    session.add_all(
        ImportedWinnerRow(digest=digest, target_id=target_id, found=data, owner=owner, imported_at=now)
        for digest, data in rows.items()
        if digest in new
    )
    return len(new)


def known(session: Session, target_id: str) -> list[Found]:
    """Imported winners for exactly that target whose kinds of ops are known here, newest first."""
    query = (
        select(ImportedWinnerRow.found)
        .where(ImportedWinnerRow.target_id == target_id)
        .order_by(ImportedWinnerRow.seq.desc())
        .limit(MAX_KNOWN)
    )
    found = map(_from_json, session.scalars(query))
    return [one for one in found if not one.workload.unknown_kinds]


def _digest(target_id: str, data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([target_id, data], sort_keys=True).encode()).hexdigest()


def _to_json(found: Found) -> dict[str, Any]:
    return {
        "workload": found.workload.to_json(),
        "objective": {"l2": str(found.objective.l2), "regime": str(found.objective.regime)},
        "candidate": candidate_to_json(found.candidate),
        **{name: getattr(found, name) for name in _COPIED},
    }


def _from_json(data: dict[str, Any]) -> Found:
    objective = data["objective"]
    return Found(
        workload=Workload.from_json(data["workload"]),
        objective=Objective(l2=CacheState(objective["l2"]), regime=Regime(objective["regime"])),
        candidate=candidate_from_json(data["candidate"]),
        **{name: data[name] for name in _COPIED},
    )


#: Fields that are stored under their own names.
_COPIED = ("time_us", "speedup", "source", "kernel_version")
