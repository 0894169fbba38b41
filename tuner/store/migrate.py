"""Brings a database to this version's tables, or back."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine

import tuner
from tuner.errors import StoreError


def migrations_dir() -> Path:
    """Where the migrations lie: inside the package in a wheel, beside it in a checkout."""
    package = Path(tuner.__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def _config(engine: Engine) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["engine"] = engine
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Applies what is missing.

    Raises:
        StoreError: the database was written by a newer version.
    """
    try:
        command.upgrade(_config(engine), revision)
    except CommandError as error:
        raise StoreError(f"{engine.url} cannot be brought to this version: {error}; install the newer tuner") from error


def downgrade(engine: Engine, revision: str = "base") -> None:
    """Takes migrations back."""
    command.downgrade(_config(engine), revision)
