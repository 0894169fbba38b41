"""A request cut off by the end of the server gets a 503 with a retry time, not a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tuner.api.http.ending import AnswerAtTheEnd

SCOPE = {"type": "http", "method": "GET", "path": "/ui/results", "headers": []}


async def interrupted(*, has_begun: bool) -> list[dict[str, Any]]:
    """The response to a request that is cancelled half-way, as uvicorn does after its shutdown timeout."""
    waits, sent = asyncio.Event(), list[dict[str, Any]]()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waits.set()
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    task = asyncio.ensure_future(AnswerAtTheEnd(app)(SCOPE, receive, send))  # type: ignore[arg-type]
    await waits.wait()
    task.cancel()
    if has_begun:
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    return sent


def test_a_request_that_is_cut_before_its_answer_is_a_503_and_says_when_to_ask_again() -> None:
    start, body = asyncio.run(interrupted(has_begun=False))
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"5"
    assert dict(start["headers"])[b"content-type"].startswith(b"application/problem+json")
    assert "the server is shutting down" in json.loads(body["body"])["detail"]


def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    assert [message["type"] for message in asyncio.run(interrupted(has_begun=True))] == ["http.response.start"]
