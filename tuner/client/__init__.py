"""The client: a library and a command line that need neither a server nor a GPU.

Its parts are imported on demand: the command line must print its help quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.client.connection.http import Client
    from tuner.client.delivery.artifact import Artifact, open_artifact
    from tuner.client.errors import ClientError
    from tuner.client.exits import ExitCode
else:
    from importlib import import_module

    _HOMES = {
        "Artifact": "delivery.artifact",
        "Client": "connection.http",
        "ClientError": "errors",
        "ExitCode": "exits",
        "open_artifact": "delivery.artifact",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = ["Artifact", "Client", "ClientError", "ExitCode", "open_artifact"]
