"""The targets of the server that runs the jobs, so that standby servers can accept jobs for them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tuner.core.problem.gpu import Target
from tuner.store.tables.models import ServedTargetRow

#: Built once, through the table, since a standby server runs it with every accepted job.
_IDS = select(ServedTargetRow.target_id).order_by(ServedTargetRow.position)


def note(session: Session, targets: Sequence[Target]) -> None:
    """Records that this server runs the jobs, and its targets; the first is the default."""
    ids = [target.id for target in targets]
    if ids == target_ids(session):
        return
    session.execute(delete(ServedTargetRow))
    session.add_all(ServedTargetRow(position=place, target_id=one) for place, one in enumerate(ids))


def target_ids(session: Session) -> list[str]:
    """The targets of the server that runs the jobs, or was the last to run them; empty if there was none."""
    return list(session.connection().scalars(_IDS))
