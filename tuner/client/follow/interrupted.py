"""Tells the user what continues on the server when a command is interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from tuner.client.connection.addresses import command_at
from tuner.client.connection.http import Client
from tuner.client.exits import ExitCode

#: A way to resume other than another command.
SAME_COMMAND = "the same command again"


@contextmanager
def what_goes_on(client: Client, ids: Sequence[str], again: str = "") -> Iterator[None]:
    """After Ctrl-C in the block, prints that the jobs and batches continue and how to return to them, and exits.

    Args:
        client: connected to their service.
        ids: the watched jobs and batches.
        again: what running the same command again does; empty if it does not help.
    """
    verb, them = ("continues", "it") if len(ids) == 1 else ("continue", "them")
    ways = {"come back": [command_at(client.url, "watch", *ids), *([again] if again else [])]}
    ways[f"end {them}"] = [command_at(client.url, "cancel", *ids)]
    with _saying(f"{' '.join(ids)} {verb} on the service", ways):
        yield


@contextmanager
def inspection_goes_on(what: str, job_id: str, number: int) -> Iterator[None]:
    """Does the same for an inspection of a trial, e.g. `the trace`."""
    with _saying(f"{what} of trial {number} of {job_id} will be collected anyway", {"come back": [SAME_COMMAND]}):
        yield


@contextmanager
def _saying(what: str, ways: dict[str, list[str]]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interruption:
        click.echo(f"\ntuner-client: {what}.", err=True)
        for name, lines in ways.items():
            for index, line in enumerate(lines):
                click.echo(f"  {'' if index else name + ':':<12}{line}", err=True)
        raise click.exceptions.Exit(ExitCode.FAULT) from interruption
