"""The path prefix of a service that a proxy serves under a path of a site.

The application's own paths start at its root. What leaves the service (JSON, pages, `Location`, cookies) gets the
request's root path as a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated

from pydantic import PlainSerializer

_ROOT_PATH: ContextVar[str] = ContextVar("root_path", default="")


def root_path() -> str:
    """The root path of the current request, e.g. `/tuner`; empty if there is none."""
    return _ROOT_PATH.get()


def outside(path: str) -> str:
    """A path of the application as seen from outside; other texts are returned unchanged."""
    is_path = path.startswith("/") and not path.startswith("//")
    return _ROOT_PATH.get() + path if is_path else path


@contextmanager
def answering_below(path: str) -> Iterator[None]:
    """Makes everything written in the block be for a client that reaches the service under `path`, e.g. `/tuner`."""
    token = _ROOT_PATH.set(path)
    try:
        yield
    finally:
        _ROOT_PATH.reset(token)


#: A path of the application, whose JSON form is the external path.
Link = Annotated[str, PlainSerializer(outside, return_type=str, when_used="json")]
