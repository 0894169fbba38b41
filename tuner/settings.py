"""The server's settings: from the command line, else from environment variables, else the defaults here."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Each is read from `TUNER_` and its name in capitals, e.g. `TUNER_PORT`."""

    model_config = SettingsConfigDict(env_prefix="TUNER_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback only with `insecure`")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one and prints it")
    data: Path = Field(default=Path("tuner-data"), description="folder of database, artifacts and build cache")
    gpu: str = Field(
        default="auto",
        description="`auto`: this machine's GPUs, else a simulated H200; `simulated:<gpu>`; `none`: measure nothing",
    )
    insecure: bool = Field(default=False, description="allow an address beyond loopback: there are no tokens yet")
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; by default SQLite in the data folder"
    )
    disk_limit_bytes: int = Field(
        default=8 * 2**30,
        gt=0,
        description="most bytes of builds, artifacts, samples, counters and traces; oldest go first",
    )
    simulated_latency_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="seconds that a simulated trial takes, so that there is something to watch",
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error"
    )

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if not self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is reachable from other machines and there are no tokens yet; "
                "listen on 127.0.0.1, or accept that with --insecure"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
