"""Forecasts that one process of a test run has computed are read by all others: jobs of tests draw the same first
guesses, and their forecasts take half of a small job's processor time."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

from tuner.core.model import forecast
from tuner.core.model.rates import Rates, rates_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate

_compute = forecast._forecast_us


class _Log:
    """A file of lines `<candidate> <time or inf> <limit>`, microseconds, to which any process appends."""

    def __init__(self, path: Path) -> None:
        self._path, self._num_read = path, 0
        self._times_us: dict[str, float] = {}
        #: The largest limit that a candidate's forecast exceeds.
        self._over_us: dict[str, float] = {}

    def find(self, key: str, limit_us: float) -> float | None:
        """The time, infinity if it exceeds the limit, or None if neither is known."""
        if key not in self._times_us:
            self._read()
        if limit_us <= self._over_us.get(key, -math.inf):
            return math.inf
        return self._times_us.get(key)

    def add(self, key: str, time_us: float, limit_us: float) -> None:
        """Appends a line in one piece, so that lines of several processes do not mix."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{key} {time_us!r} {limit_us!r}\n".encode())
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        """Reads what was appended since. Threads that do so at the same time read some lines twice; with a lock, forks
        could wait forever."""
        begin = self._num_read
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._num_read = begin + len(whole) + len(end)
        for line in whole.decode().splitlines():
            key, time_us, limit_us = line.split()
            if float(time_us) < math.inf:
                self._times_us[key] = float(time_us)
            else:
                self._over_us[key] = max(float(limit_us), self._over_us.get(key, -math.inf))


@lru_cache(maxsize=64)
def _log(folder: Path, workload: Workload, gpu: Gpu, rates: Rates) -> _Log:
    name = hashlib.sha256(repr((workload, gpu, gpu.live_clusters, rates)).encode()).hexdigest()
    return _Log(folder / f"{name}.forecasts")


@contextmanager
def kept_forecasts(folder: Path) -> Iterator[None]:
    """In the block, this process and its forks read and write the forecasts in `folder`."""

    def read_or_compute(workload: Workload, gpu: Gpu, candidate: Candidate, limit_us: float) -> float:
        log = _log(folder, workload, gpu, rates_of(gpu))
        key = hashlib.sha256(repr(candidate).encode()).hexdigest()
        found = log.find(key, limit_us)
        if found is None:
            found = _compute(workload, gpu, candidate, limit_us)
            log.add(key, found, limit_us)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "_forecast_us", read_or_compute)
        yield
