"""Command-line options of the commands that make packs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tuner.client.options.options import Finite
from tuner.packs.ladder import DEFAULT_MIN_GAIN

F = TypeVar("F", bound=Callable[..., Any])

lock_option = click.option(
    "--lock", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The lock file, e.g. tuner.lock."
)


def pack_options(command: F) -> F:
    """The options that say how a pack is made and where it goes."""
    for option in reversed(
        [
            click.option(
                "-o",
                "--output",
                type=click.Path(dir_okay=False, path_type=Path),
                required=True,
                help="e.g. model.tunerpack.",
            ),
            click.option(
                "--lock", type=click.Path(dir_okay=False, path_type=Path), help="Notes the pack in this lock."
            ),
            click.option(
                "--min-gain",
                type=Finite(min=0, max=100),
                default=DEFAULT_MIN_GAIN,
                show_default=True,
                help="Where our kernel gains less over the library, the library is kept.",
            ),
            click.option(
                "--batch-invariant",
                is_flag=True,
                help="A row's bits depend on no other row: kernels of one order of sums alone, whatever they gain.",
            ),
            click.option("--key", help="The public key that must have signed it, as `tuner key show` prints it."),
        ]
    ):
        command = option(command)
    return command
