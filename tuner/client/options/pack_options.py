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
    """Options for making a pack and for its destination."""
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
                "--lock", type=click.Path(dir_okay=False, path_type=Path), help="Record the pack in this lock file."
            ),
            click.option(
                "--min-gain",
                type=Finite(min=0, max=100),
                default=DEFAULT_MIN_GAIN,
                show_default=True,
                help="Minimum gain over the library for which a kernel is used.",
            ),
            click.option(
                "--batch-invariant",
                is_flag=True,
                help=(
                    "Batch invariance: a row's bits do not depend on other rows; all kernels sum in the "
                    "same order, whatever they gain."
                ),
            ),
            click.option("--key", help="The public key of the required signature, as printed by `tuner key show`."),
        ]
    ):
        command = option(command)
    return command
