"""Log lines as text or JSON, each with the request, job and trial that it belongs to, if any."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The request, job and trial that the current thread or task works on; empty if there is none.
_CONTEXT: dict[str, ContextVar[str]] = {
    name: ContextVar(name, default="") for name in ("request_id", "job_id", "trial_number")
}


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Adds `request_id`, `job_id` or `trial_number` to the log lines written in the block."""
    marks = [(_CONTEXT[name], _CONTEXT[name].set(value)) for name, value in ids.items()]
    try:
        yield
    finally:
        for variable, mark in reversed(marks):
            variable.reset(mark)


def _add_ids(record: logging.LogRecord) -> bool:
    """A filter that accepts all lines, and adds the ids of the current request, job and trial."""
    found = {name: value for name, variable in _CONTEXT.items() if (value := variable.get())}
    record.__dict__.update(found)
    record.about = "".join(f" [{name}={value}]" for name, value in found.items())
    return True


def configure(level: str, form: str) -> None:
    """Sends log lines to stderr: as `text`, or as `json` with one object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_add_ids)
    handler.setFormatter(_json_formatter() if form == "json" else _text_formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # A log line for each migration of a new database would not help its operator.
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("alembic").setLevel(logging.WARNING)


def _text_formatter() -> logging.Formatter:
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s%(about)s")


def _json_formatter() -> logging.Formatter:
    from pythonjsonlogger.core import RESERVED_ATTRS
    from pythonjsonlogger.json import JsonFormatter

    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        timestamp=True,
        rename_fields={"levelname": "level", "name": "logger"},
        # Leaves out attributes that the server adds, and those that text lines have instead of fields.
        reserved_attrs=[*RESERVED_ATTRS, "about", "color_message", "taskName"],
    )
