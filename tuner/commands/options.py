"""Options that the commands of `tuner` share, and the resulting settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tuner.settings import Settings
    from tuner.store import Store

data_option = click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Folder for database, artifacts and build cache."
)
tls_option = click.option(
    "--tls", type=click.Path(file_okay=False, path_type=Path), help="Folder with certificates from `tuner tls create`."
)
database_option = click.option("--database-url", help="postgresql://USER@HOST/NAME.  [default: SQLite in the folder]")


def settings_of(options: dict[str, Any], *, reads_fits: bool = True) -> Settings:
    """The given options, otherwise the environment, otherwise the defaults. The simulator uses the fits that the
    settings name, unless `reads_fits` is false.

    Raises:
        click.UsageError: a setting is wrong, with its name.
        InvalidInput: a fit is invalid.
    """
    from pydantic import ValidationError

    from tuner.client.connection.config import VARIABLES, misspelt
    from tuner.core.model.rates import use_fits
    from tuner.settings import Settings

    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        raise click.UsageError("; ".join(_in_words(one) for one in error.errors())) from error
    known = [*(f"TUNER_{name.upper()}" for name in Settings.model_fields), *VARIABLES]
    if found := misspelt(os.environ, known):
        raise click.UsageError("; ".join(found))
    if reads_fits:
        use_fits(settings.fits_folder)
    return settings


def _in_words(error: Mapping[str, Any]) -> str:
    """`port: should be an integer, got 'x'; give an integer`."""
    from tuner.wire.requests.problems import of_validation

    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    found = of_validation(error)
    return f"{found.field}: {found.problem}; {found.remedy}"


def settings_of_service(options: dict[str, Any]) -> Settings:
    """The same, for a command about an existing service: a misspelled folder or URL creates nothing.

    Raises:
        click.UsageError: names each wrong setting.
        click.ClickException: there is no database.
        StoreError: the URL of the database is invalid.
    """
    from tuner.store.engine.engines import has_database

    settings = settings_of(options)
    if not has_database(settings.data, settings.database_url):
        if settings.database_url is None:
            raise click.ClickException(f"{settings.data} has no database; pass a service's data folder as --data")
        raise click.ClickException(
            f"there is no database {settings.database_url}; pass a service's database as --database-url"
        )
    return settings


def settings_of_place(options: dict[str, Any]) -> Settings:
    """The same, for a command that may create a database: in the default folder, or in an existing one.

    Raises:
        click.UsageError: a setting is wrong, with its name.
        click.ClickException: another folder does not exist.
    """
    settings = settings_of(options)
    is_default = settings.data == type(settings).model_fields["data"].default
    if settings.database_url is None and not is_default and not settings.data.is_dir():
        raise click.ClickException(
            f"there is no folder {settings.data}; pass a service's data folder as --data, or create the folder of a "
            "new service first"
        )
    return settings


@contextmanager
def store_beside_servers(settings: Settings) -> Iterator[Store]:
    """The store of a service for the duration of the block; its server may run meanwhile.

    Raises:
        StoreError: it cannot be used.
    """
    from tuner.store import Store

    store = Store.open(settings.data, settings.database_url, settings.lock_patience_s, shared=True)
    try:
        yield store
    finally:
        store.close()


def folder_of_service(options: dict[str, Any]) -> Path:
    """The data folder, for a command about files in it.

    Raises:
        click.UsageError: a setting is wrong; the message names it.
        click.ClickException: there is no such folder.
    """
    folder = settings_of(options).data
    if not folder.is_dir():
        raise click.ClickException(f"there is no folder {folder}; pass a service's data folder as --data")
    return folder
