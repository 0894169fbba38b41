"""Migrates a database to this version's tables, or back."""

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
    """The folder of migrations: inside the package in a wheel, next to it in a checkout."""
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
    """Applies the missing migrations.

    Raises:
        StoreError: the database was written by a newer version.
    """
    config = _config(engine)
    _check_known(engine)
    command.upgrade(config, revision)


def _check_known(engine: Engine) -> None:
    """Refuses tables that this version does not know."""
    if not is_known(engine):
        raise StoreError(
            f"{engine.url!r} was written by a newer version: its tables are at revision {revision_of(engine)}, but "
            f"{DISTRIBUTION} {__version__} supports only up to {head()}; install that version, or pass another --data"
        )


def is_known(engine: Engine) -> bool:
    """Whether this version knows the tables, or there are none."""
    found = revision_of(engine)
    return found is None or found in revisions()


def revisions() -> set[str]:
    """Revisions of all tables that this version knows."""
    return {script.revision for script in ScriptDirectory(str(migrations_dir())).walk_revisions()}


def is_current(engine: Engine) -> bool:
    """Whether the tables match this version."""
    return revision_of(engine) == head()


def head() -> str:
    """The revision of this version's tables."""
    return str(ScriptDirectory(str(migrations_dir())).get_current_head())


def revision_of(engine: Engine) -> str | None:
    """The database's revision, which is the number of the last migration; None if it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def downgrade(engine: Engine, revision: str = "base") -> None:
    """Reverts migrations."""
    command.downgrade(_config(engine), revision)
