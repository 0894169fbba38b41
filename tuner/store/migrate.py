"""Brings a database to this version's tables, or back."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

import tuner
from tuner import __version__
from tuner.errors import StoreError
from tuner.versions import DISTRIBUTION


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
    config = _config(engine)
    _check_known(engine, ScriptDirectory.from_config(config))
    command.upgrade(config, revision)


def _check_known(engine: Engine, scripts: ScriptDirectory) -> None:
    """Refuses tables that this version has never heard of."""
    found = revision_of(engine)
    if found and found not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreError(
            f"{engine.url} was written by a newer version: its tables are of revision {found}, and "
            f"{DISTRIBUTION} {__version__} knows them up to {scripts.get_current_head()}; "
            "install that version, or give another --data"
        )


def check_current(engine: Engine) -> None:
    """Raises:
    StoreError: the tables are not of this version's revision.
    """
    found, own = revision_of(engine), ScriptDirectory.from_config(_config(engine)).get_current_head()
    if found != own:
        raise StoreError(
            f"the server that uses {engine.url} is of another version: its tables are of revision {found}, and "
            f"{DISTRIBUTION} {__version__} knows {own}; use the server's own version, or stop it first"
        )


def revision_of(engine: Engine) -> str | None:
    """What the database says of its tables, the number of the last migration; None where it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def downgrade(engine: Engine, revision: str = "base") -> None:
    """Takes migrations back."""
    command.downgrade(_config(engine), revision)
