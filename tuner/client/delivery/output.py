"""Output of the commands: data to stdout or a file, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table

from tuner.client.delivery.files import write_atomically

#: Width of tables that do not go to a terminal.
_PIPE_WIDTH = 240
#: How the signs of a drawing at the beginning of a line continue below it.
_CONTINUED = str.maketrans("┌─▶", "│  ")
#: Columns below which shapes are not repeated in each row.
_NARROW = 110


def plain_console(**options: Any) -> Console:
    """A console that prints texts unchanged: an extra such as `[worker-cuda13]` in a reason is not markup.

    Args:
        options: passed to `rich.console.Console`.
    """
    return Console(markup=False, **options)


def say_if_simulated(is_simulated: bool, what: str = "the result") -> None:
    """Warns on stderr about figures and kernels that were not measured on a card."""
    if is_simulated:
        click.echo(f"tuner-client: {what} is simulated: it never ran on a card", err=True)


def print_table(table: RenderableType) -> None:
    """Prints a table, as wide as the terminal or COLUMNS; in full width otherwise. No word is cut: a long one
    continues on the next line. In a narrow terminal, each shape has a separate table below its name."""
    width = table_width()
    if not isinstance(table, Table):
        plain_console(width=width, highlight=False).print(table)
        return
    of_shapes = table.columns[0].header == "shape" and width < _NARROW
    for one in _by_shape(table) if of_shapes else (table,):
        for column in one.columns:
            column.overflow = "fold"
        plain_console(width=width).print(one)


def _by_shape(table: Table) -> Iterator[Table]:
    """A table for each run of equal cells in the first column, without that column. The first table has the title, the
    last one the caption."""
    rows = zip(*(column.cells for column in table.columns), strict=True)
    groups = [(str(shape), [row[1:] for row in members]) for shape, members in groupby(rows, key=itemgetter(0))]
    for place, (shape, members) in enumerate(groups):
        title = f"{table.title}\n{shape}" if table.title and place == 0 else shape
        found = Table(title=title, title_justify="left", caption_justify="left")
        if place == len(groups) - 1:
            found.caption = table.caption
        for column in table.columns[1:]:
            found.add_column(column.header, justify=column.justify)
        for row in members:
            found.add_row(*row)
        yield found


def table_width() -> int:
    """The width that a table may take."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return plain_console().width if has_width else _PIPE_WIDTH


def print_sentences(sentences: Iterable[str]) -> None:
    """Prints each sentence on one line. If the terminal is narrower, the line is broken between words, along the lines
    of a drawing."""
    width = table_width()
    for sentence in sentences:
        margin = sentence[: len(sentence) - len(sentence.lstrip(" │┌─▶"))].translate(_CONTINUED)
        lines = textwrap.wrap(
            sentence, width, subsequent_indent=f"{margin}  ", break_long_words=False, break_on_hyphens=False
        )
        click.echo("\n".join(lines))


def print_json(document: Mapping[str, Any]) -> None:
    """Prints a document as one line of JSON."""
    click.echo(json.dumps(document))


def write_or_print(content: bytes, output: Path | None) -> None:
    """Writes `content` to `output` atomically; without a path to stdout.

    Raises:
        click.UsageError: the path cannot be written.
    """
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        written = write_atomically(output, content)
    except OSError as error:
        raise click.UsageError(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"tuner-client: {output} {'written' if written else 'is unchanged'}", err=True)


def document(found: Mapping[str, Any]) -> bytes:
    """A JSON file that people can read: equal content gives equal bytes."""
    return (json.dumps(found, indent=2, sort_keys=True) + "\n").encode()
