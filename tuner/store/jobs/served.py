"""What the server that runs the jobs measures on, for those that stand by: they take jobs for it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tuner.core.problem.gpu import Target
from tuner.store.tables.models import ServedTargetRow

#: Built once, and asked by its table: a server that stands by asks with every job that it takes.
_IDS = select(ServedTargetRow.target_id).order_by(ServedTargetRow.position)


def note(session: Session, targets: Sequence[Target]) -> None:
    """This server runs the jobs, and measures on these targets; the first is the default."""
    ids = [target.id for target in targets]
    if ids == target_ids(session):
        return
    session.execute(delete(ServedTargetRow))
    session.add_all(ServedTargetRow(position=place, target_id=one) for place, one in enumerate(ids))


def target_ids(session: Session) -> list[str]:
    """The targets of the server that runs the jobs, or ran them last; empty where none ever did."""
    return list(session.connection().scalars(_IDS))
