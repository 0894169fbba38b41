"""Responses to probes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tuner import __version__
from tuner.versions import WIRE_VERSION
from tuner.wire.base.view import View


class Health(View):
    """The response to a probe, and which server sent it."""

    status: Literal["ok"] = "ok"
    version: str = Field(default=__version__, description="of the program")
    wire_version: int = Field(default=WIRE_VERSION, description="version of the format of requests and responses")


class Readiness(Health):
    """The server is ready, possibly not for all targets."""

    quarantined: dict[str, str] = Field(description="target -> why nothing can be measured there now")
