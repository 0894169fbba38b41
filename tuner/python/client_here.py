"""A client whose service is in this process, and what it knows of that one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.client.connection.http import Client
from tuner.core.trial.reports.baselines import Baseline


class ClientHere(Client):
    """A client of a service in this process."""

    #: Where its database and kernels are.
    data: Path
    #: A sentence on what it measures with.
    why: str
    #: Has programs of a user's own timed beside the finalists of a job that has a result.
    beside: Callable[[str, Sequence[Baseline]], object]
