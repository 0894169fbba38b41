"""What continues when somebody stops watching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click


@contextmanager
def what_goes_on(ids: Sequence[str], again: str = "") -> Iterator[None]:
    """Says behind Ctrl-C in the block that jobs and batches continue, and how to come back to them.

    Args:
        ids: of the jobs and batches that are watched.
        again: what the same command does when it is run again; empty where that is no way back.
    """
    try:
        yield
    except KeyboardInterrupt:
        names = " ".join(ids)
        verb, them = ("goes", "it") if len(ids) == 1 else ("go", "them")
        click.echo(
            f"\ntuner-client: {names} {verb} on at the service.\n"
            f"  come back:  tuner-client watch {names}\n"
            + (f"              {again}\n" if again else "")
            + "".join(f"  end {them}:{' ' * (7 - len(them))}tuner-client cancel {one}\n" for one in ids[:1])
            + (f"              and so on for the other {len(ids) - 1}\n" if len(ids) > 1 else ""),
            err=True,
            nl=False,
        )
        raise
