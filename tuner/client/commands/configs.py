"""Checks of model configs that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from tuner.client.models.described import is_described
from tuner.client.models.fields import check_fields
from tuner.client.options.model_options import read_config
from tuner.errors import InvalidInput


def networks_among(paths: Iterable[Path], options: Mapping[str, Any]) -> list[Path]:
    """The files that describe a network by its layers.

    Raises:
        click.UsageError: there are some, but no number of images.
    """
    found = [path for path in paths if is_described(read_config(path))]
    if found and options["rows"] is None:
        raise click.UsageError(f"{found[0]}: pass --m, the number of images")
    return found


def check_configs(paths: Iterable[Path], *, with_context: bool) -> None:
    """Checks the names of the configs' fields, and reports the defaults used for missing ones.

    Raises:
        click.UsageError: a field is misspelt, or a size is missing.
    """
    for path in paths:
        config = read_config(path)
        try:
            defaults = check_fields(config, with_context=with_context)
        except InvalidInput as error:
            raise click.UsageError(f"{path}: {error}") from error
        if defaults:
            click.echo(f"{path}: {config['model_type']}'s defaults are used: {', '.join(defaults)}", err=True)
