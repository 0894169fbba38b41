"""The client: a library and a command line that need neither server nor GPU."""

from tuner.client.artifact import Artifact, open_artifact
from tuner.client.errors import ClientError
from tuner.client.exits import ExitCode
from tuner.client.http import Client

__all__ = ["Artifact", "Client", "ClientError", "ExitCode", "open_artifact"]
