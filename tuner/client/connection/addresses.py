"""Addresses from responses, command lines to paste, and ids."""

from __future__ import annotations

import shlex

import httpx

from tuner.client.connection.config import DEFAULT_URL, configured_url

#: The prefix of a batch's id.
_BATCH = "batch-"


def is_batch(some_id: str) -> bool:
    """Whether an id is a batch's; otherwise it is a job's."""
    return some_id.startswith(_BATCH)


def command_at(url: str, *words: str) -> str:
    """A command line of the client for the service at `url`, to be pasted in the same place."""
    own = configured_url() or DEFAULT_URL
    return shlex.join(["tuner-client", *([] if url == own else ["--url", url]), *words])


def address_of(url: str, link: str) -> str:
    """Full URL of `link`, a path from a response, on the service at `url`.

    A service that knows its path behind a proxy includes it in its links; for others, the path of `url` is used.
    """
    base = httpx.URL(url)
    below = base.path.rstrip("/")
    path = link if link == below or link.startswith(f"{below}/") else below + link
    return str(base.copy_with(raw_path=path.encode()))
