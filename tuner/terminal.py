"""What a command prints, where stdout is less than a terminal of UTF-8: an ASCII one, a full disk."""

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
#: A place that takes no more, by the number of the error.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_HANDLER = "tuner.spelled"


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(one, "?") for one in error.object[error.start : error.end]), error.end


codecs.register_error(_HANDLER, _spelled)


@contextmanager
def printing() -> Iterator[None]:
    """While it lasts every character can be printed, and a stdout that takes no more raises `CannotPrint`.

    Raises:
        CannotPrint: stdout takes no more.
    """
    for stream in (sys.stdout, sys.stderr):
        _make_printable(stream)
    try:
        try:
            yield
        finally:  # an exit is none before what was printed is there
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _give_up(sys.stdout)
        raise CannotPrint(f"the output cannot be written: {error.strerror}") from error


class CannotPrint(Exception):
    """Stdout takes no more; the message says why."""


def _make_printable(stream: TextIO | None) -> None:
    if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors=_HANDLER)


def _give_up(stream: TextIO) -> None:
    """What is still in the buffer goes nowhere: the interpreter would fail at it once more when it ends."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
