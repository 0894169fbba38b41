"""Prints a command's output on a stdout with limits, such as an ASCII terminal or a full disk."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

#: The replacement of a character that a stream cannot encode.
_SPELLED = {
    "µ": "u",
    "×": "x",
    "–": "-",
    "—": "-",
    "→": "->",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "²": "2",
    "“": '"',
    "”": '"',
}
#: Reasons why output cannot be written, by error number.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_HANDLER = "tuner.spelled"


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(one, "?") for one in error.object[error.start : error.end]), error.end


codecs.register_error(_HANDLER, _spelled)


@contextmanager
def printing() -> Iterator[None]:
    """Within the block every character can be printed, and a stdout that cannot be written raises `CannotPrint`.

    Raises:
        CannotPrint: stdout cannot be written.
    """
    for stream in (sys.stdout, sys.stderr):
        _make_printable(stream)
    try:
        try:
            yield
        finally:  # the output must be complete before the exit
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _give_up(sys.stdout)
        raise CannotPrint(f"the output cannot be written: {error.strerror}") from error


class CannotPrint(Exception):
    """Stdout cannot be written; the message has the reason."""


def _make_printable(stream: TextIO | None) -> None:
    if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors=_HANDLER)


def _give_up(stream: TextIO) -> None:
    """Discards the buffered output, since the interpreter would fail again when it writes it at its exit."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
