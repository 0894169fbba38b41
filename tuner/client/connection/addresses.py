"""Addresses for people: what a service's answer links to, as a browser opens it."""

from __future__ import annotations

import httpx

#: How a batch's id begins.
_BATCH = "batch-"


def is_batch(some_id: str) -> bool:
    """Whether an id is a batch's, or else a job's."""
    return some_id.startswith(_BATCH)


def address_of(url: str, link: str) -> str:
    """Full URL of `link`, a path from a response, on the service at `url`.

    A service that knows of the path that a proxy has it below names it in its links; one that does not is asked below
    it all the same.
    """
    base = httpx.URL(url)
    below = base.path.rstrip("/")
    path = link if link == below or link.startswith(f"{below}/") else below + link
    return str(base.copy_with(raw_path=path.encode()))
