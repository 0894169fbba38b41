"""Data for the charts of a job: its trials as points, and which axes determined their times. Results are cached for a
while, since trials never change; expensive ones are computed only once for all requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from tuner.search.model.importance import AxisImportances, axis_importances
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import points as trial_points
from tuner.store.trials import trials
from tuner.store.trials.points import TrialPoints

T = TypeVar("T")

#: Maximum number of our measured trials with which axes are analysed; they are evenly spaced.
MAX_JUDGED = 400
#: Number of new trials after which a running job's axes are analysed again.
_JUDGED_EVERY = 20
_NUM_KEPT = 8


class JobCharts:
    """Reads a job's trials for charts. Thread-safe; each call runs in the caller's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._points: _Kept[TrialPoints] = _Kept(_NUM_KEPT)
        self._importances: _Kept[AxisImportances] = _Kept(_NUM_KEPT)

    def points(self, job_id: str) -> TrialPoints:
        """The job's trials, or an evenly spaced selection if there are many.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            num_trials = jobs.get(session, job_id).num_trials
        return self._points.get((job_id, num_trials), lambda: self._read_points(job_id))

    def importances(self, job_id: str) -> AxisImportances:
        """Which axes determined the times of the job's trials; for an open job, without the last few trials.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            job = jobs.get(session, job_id)
        period = -1 if job.state.is_final else job.num_measured // _JUDGED_EVERY
        return self._importances.get((job_id, period), lambda: self._judge(job_id))

    def forecasts(self, job_id: str) -> list[tuple[float, float]]:
        """(forecast in microseconds, measured time relative to the library's) of at most a thousand fused trials with
        one kind of launch.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return trials.forecasts(session, job_id)

    def _read_points(self, job_id: str) -> TrialPoints:
        with self._store.read() as session:
            return trial_points.points(session, job_id)

    def _judge(self, job_id: str) -> AxisImportances:
        with self._store.read() as session:
            found = trial_points.measured_candidates(session, job_id, MAX_JUDGED)
        return axis_importances(found)


class _Kept(Generic[T]):
    """A cache of the last few results; only one result is computed at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._answers: OrderedDict[tuple[str, int], T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int], answer: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._answers:
                self._answers[key] = answer()
            self._answers.move_to_end(key)
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)
            return self._answers[key]
