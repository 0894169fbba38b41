"""The shapes of all results, in memory, to find the nearest one without reading every row."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.core.trial.questions import DISTANCE_DIGITS
from tuner.store.tables.models import DeletedJobRow, ResultKeyRow

_COLUMNS = (
    ResultKeyRow.seq,
    ResultKeyRow.form_digest,
    ResultKeyRow.is_simulated,
    ResultKeyRow.target_id,
    ResultKeyRow.sizes,
)
#: Maximum number of rows per query.
_SLICE = 500

#: A group of results: their form, whether they are simulated, their target, and their number of sizes.
_Group = tuple[str, bool, str, int]


def to_text(sizes: Sequence[float]) -> str:
    """Sizes in the database's form: equal sizes give equal text."""
    return json.dumps(list(sizes))


def from_text(text: str) -> list[float]:
    """Inverse of `to_text`."""
    sizes: list[float] = json.loads(text)
    return sizes


@dataclass(frozen=True, kw_only=True)
class NearShape:
    """A shape that has a result."""

    target_id: str
    #: The sizes as in the database.
    sizes: str
    #: Its distance from the requested shape, by `shape_distance`.
    distance: float


@dataclass(kw_only=True)
class _Shapes:
    """The shapes of one group, unordered."""

    #: [num] the numbers of the jobs.
    seqs: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: [num, num_sizes] the sizes of each shape.
    sizes: npt.NDArray[np.float64]


class ShapeIndex:
    """The shapes in `ResultKeyRow`. Thread-safe; changes by any process are seen.

    Results are added and removed, but never changed. Each removal adds a permanent row to the deleted jobs. So while
    the number of deleted jobs is unchanged, results were only added; if the number of results is unchanged, too, there
    was no change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The number of deleted jobs and the number of results at the last update; None before the first update.
        self._state = (-1, 0)
        self._known: set[int] = set()
        self._groups: dict[_Group, _Shapes] = {}

    def nearest(
        self, session: Session, form: str, target: str, sizes: Sequence[float], *, is_simulated: bool, elsewhere: bool
    ) -> NearShape | None:
        """The nearest shape of the form `form` on the target, or, with `elsewhere`, on another target; among equally
        near shapes, the one with the newest result. None if there is none."""
        found = []
        with self._lock:
            self._follow(session)
            for (of_form, simulated, of_target, count), shapes in self._groups.items():
                alike = (of_form, simulated, count) == (form, is_simulated, len(sizes))
                if alike and (of_target != target) == elsewhere:
                    found.append(_nearest_of(shapes, of_target, sizes))
        return min(found, key=lambda one: one[0], default=(None, None))[1]

    def near(self, session: Session, target: str, sizes: Sequence[float], limit: int) -> list[int]:
        """At most `limit` jobs on a target, of any form, nearest sizes first, and among equally near ones the newest.
        If one of two shapes has more sizes, the additional ones count as 1 in the other."""
        asked, seqs, distances = np.array(sizes), [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        with self._lock:
            self._follow(session)
            for (*_, of_target, count), shapes in self._groups.items():
                if of_target == target:
                    both = min(count, len(sizes))
                    distance = np.abs(shapes.sizes[:, :both] - asked[:both]).sum(axis=1)
                    distance += np.abs(shapes.sizes[:, both:]).sum(axis=1) + np.abs(asked[both:]).sum()
                    seqs.append(shapes.seqs)
                    distances.append(np.round(distance, DISTANCE_DIGITS))
        found = np.concatenate(seqs)
        order = np.lexsort((-found, np.concatenate(distances)))
        return [int(seq) for seq in found[order[:limit]]]

    def _follow(self, session: Session) -> None:
        """Adds the changes since the last update."""
        counts = (select(func.count()).select_from(model).scalar_subquery() for model in (DeletedJobRow, ResultKeyRow))
        num_deleted, num_results = session.execute(select(*counts)).one()
        state = num_deleted, num_results
        if state == self._state:
            return
        if state[0] != self._state[0]:
            self._known, self._groups = set(), {}
        new: list[int] = sorted(set(session.scalars(select(ResultKeyRow.seq))) - self._known)
        whole = select(*_COLUMNS)
        if len(new) > _SLICE:
            self._add(row for row in session.execute(whole) if row[0] not in self._known)
        elif new:
            self._add(session.execute(whole.where(ResultKeyRow.seq.in_(new))))
        self._state = state

    def _add(self, rows: Iterable[Any]) -> None:
        added: dict[_Group, list[tuple[float, ...]]] = {}
        for seq, form, is_simulated, target_id, text in rows:
            self._known.add(seq)
            sizes = from_text(text)
            added.setdefault((form, bool(is_simulated), target_id, len(sizes)), []).append((seq, *sizes))
        for group, found in added.items():
            shapes = self._groups.setdefault(group, _Shapes(sizes=np.zeros((0, group[-1]))))
            shapes.seqs = np.concatenate([shapes.seqs, np.array([row[0] for row in found], dtype=np.int64)])
            shapes.sizes = np.concatenate([shapes.sizes, np.array([row[1:] for row in found], dtype=np.float64)])


def _nearest_of(shapes: _Shapes, target_id: str, sizes: Sequence[float]) -> tuple[tuple[float, int], NearShape]:
    """A group's nearest shape with its sort key: the distance, and then the newest first."""
    exact = np.abs(shapes.sizes - np.array(sizes)).sum(axis=1)
    # Only distances within a rounding error of the smallest are rounded, since rounding all takes longer than the
    # search.
    near = np.flatnonzero(exact <= exact.min() + 10.0**-DISTANCE_DIGITS)
    distances = np.round(exact[near], DISTANCE_DIGITS)
    closest = near[distances == distances.min()]
    at = int(closest[np.argmax(shapes.seqs[closest])])
    shape = NearShape(target_id=target_id, sizes=to_text(shapes.sizes[at].tolist()), distance=float(distances.min()))
    return (shape.distance, -int(shapes.seqs[at])), shape
