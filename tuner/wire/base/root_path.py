"""The path below which a service is reached, where a proxy gives it a part of a site.

The application's own values are paths from its own root. What leaves it (JSON, pages, `Location`, cookies) has the root
path in front, which is of the request that is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated

from pydantic import PlainSerializer

_ROOT_PATH: ContextVar[str] = ContextVar("root_path", default="")


def root_path() -> str:
    """The root path of the request that is answered, e.g. `/tuner`; empty for none."""
    return _ROOT_PATH.get()


def outside(path: str) -> str:
    """A path of the application, as it is seen from outside; what is no path stays as it is."""
    is_path = path.startswith("/") and not path.startswith("//")
    return _ROOT_PATH.get() + path if is_path else path


@contextmanager
def answering_below(path: str) -> Iterator[None]:
    """What is written in the block is for somebody who reaches the service below `path`, e.g. `/tuner`."""
    token = _ROOT_PATH.set(path)
    try:
        yield
    finally:
        _ROOT_PATH.reset(token)


#: A path of the application; its JSON is that from outside.
Link = Annotated[str, PlainSerializer(outside, return_type=str, when_used="json")]
