"""A client whose service is in this process, and what it knows of that one."""

from __future__ import annotations

from pathlib import Path

from tuner.client.connection.http import Client


class ClientHere(Client):
    """A client of a service in this process."""

    #: Where its database and kernels are.
    data: Path
    #: A sentence on what it measures with.
    why: str
