"""A client whose service runs in this process, and its details."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.client.connection.http import Client
from tuner.core.trial.reports.baselines import Baseline


class ClientHere(Client):
    """A client of a service in this process."""

    #: The folder of its database and kernels.
    data: Path
    #: A sentence about what it measures with.
    why: str
    #: Times a user's own programs next to the finalists of a job that has a result.
    beside: Callable[[str, Sequence[Baseline]], object]
