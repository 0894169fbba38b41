"""The events of a job, or of a batch, as a server-sent stream that resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from tuner.api.http.errors import PROBLEM_RESPONSES, problem_response
from tuner.api.routes.batches import BatchId
from tuner.api.routes.jobs import JobId
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Event
from tuner.service import Service
from tuner.store.engine.commits import Wake
from tuner.wire.requests.problems import problem
from tuner.wire.responses.responses import EventView

_BATCH = 200
#: Threads that read events, for all streams: requests use other threads. A stream that waits for an event needs none.
_NUM_READERS = 8
#: Interval in which a stream without events checks whether its job, or its batch, still exists and runs, seconds.
_JOB_CHECK_S, _BATCH_CHECK_S = 10.0, 2.0
_MAX_EVENT_ID = 2**63 - 1
#: After a refusal, clients may retry after this many seconds.
_RETRY_S = 10


class Seats:
    """How many streams are open, and the maximum. It is used only in one event loop."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[bool]:
        """A seat for the duration of the block; returns whether there was one."""
        if self._most is not None and self._taken >= self._most:
            yield False
            return
        self._taken += 1
        try:
            yield True
        finally:
            self._taken -= 1

    def refusal(self) -> Response:
        """The response if there is none."""
        detail = (
            f"{self._taken} event streams are open, which is the maximum: poll the job instead, or have "
            "TUNER_MAX_CONNECTIONS raised; one eighth of these connections is kept for requests"
        )
        return problem_response(problem(503, detail), {"retry-after": str(_RETRY_S), "connection": "close"})


class _Stream(EventSourceResponse):
    """Holds a seat as long as it lasts."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], seats: Seats) -> None:
        super().__init__(events)
        self._seats = seats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Streams, or refuses to."""
        with self._seats.one() as has_seat:
            await (super().__call__ if has_seat else self._seats.refusal())(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The source of a stream: the events of a job, or of a batch."""

    #: Those after an id, at most this many, oldest first.
    events: Callable[[int, int], Sequence[Event]]
    #: Within the block, its argument is set whenever there may be another one.
    listening: Callable[[Wake], AbstractContextManager[None]]
    #: Seconds after which it checks without being woken.
    check_s: float
    #: Whether nothing more will happen.
    is_over: Callable[[], bool]
    #: Whether this event is known to be the last one.
    is_last: Callable[[Event], bool]

    def answer(self, last_event_id: int | None, after: int, readers: CapacityLimiter, seats: Seats) -> Response:
        """Everything after the last event that the client saw."""
        after_id = after if last_event_id is None else last_event_id
        is_final = self.is_over()
        if is_final and last_event_id is not None and not self.events(after_id, 1):
            return Response(status_code=204)  # the only response after which a browser does not reconnect
        return _Stream(_events(self, after_id, is_final, readers), seats)


def event_routes(service: Service, max_streams: int | None = None) -> APIRouter:
    """The event streams, at most this many of them at a time."""
    router = APIRouter(tags=["jobs"], responses=PROBLEM_RESPONSES)
    readers, seats = CapacityLimiter(_NUM_READERS), Seats(max_streams)

    @router.get(
        "/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        responses={
            200: {"description": "Events `state`, `trial`, `best`, then `end`", "content": {"text/event-stream": {}}},
            204: {"description": "The job has ended, and the client has seen all of it"},
        },
    )
    def stream_events(
        job_id: JobId,
        last_event_id: Annotated[int | None, Header(ge=0, le=_MAX_EVENT_ID)] = None,
        after: Annotated[
            int, Query(ge=0, le=_MAX_EVENT_ID, description=("like Last-Event-ID, which takes precedence"))
        ] = 0,
    ) -> Response:
        """All past events of a job, and new ones until it ends."""
        feed = Feed(
            events=partial(service.events, job_id),
            listening=partial(service.listening, job_id),
            check_s=_JOB_CHECK_S,
            is_over=lambda: service.job(job_id).state.is_final,
            is_last=_is_last,
        )
        return feed.answer(last_event_id, after, readers, seats)

    @router.get(
        "/batches/{batch_id}/events",
        response_class=EventSourceResponse,
        responses={
            200: {"description": "Events of all its jobs, then `end`", "content": {"text/event-stream": {}}},
            204: {"description": "The batch has ended, and the client has seen all of it"},
        },
    )
    def stream_batch_events(
        batch_id: BatchId,
        last_event_id: Annotated[int | None, Header(ge=0, le=_MAX_EVENT_ID)] = None,
        after: Annotated[
            int, Query(ge=0, le=_MAX_EVENT_ID, description=("like Last-Event-ID, which takes precedence"))
        ] = 0,
    ) -> Response:
        """All past events of the jobs of a batch, and new ones until it ends."""
        feed = Feed(
            events=partial(service.batches.events, batch_id),
            listening=partial(service.batches.listening, batch_id),
            check_s=_BATCH_CHECK_S,
            is_over=lambda: service.batches.get(batch_id).state.is_final,
            is_last=lambda _: False,
        )
        return feed.answer(last_event_id, after, readers, seats)

    return router


class _Awakening:
    """A `Wake` for this loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Any thread may call it."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Resets it: earlier events do not count."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set within that time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        return self._event.is_set()


async def _events(
    feed: Feed, after_id: int, is_final: bool, readers: CapacityLimiter
) -> AsyncIterator[ServerSentEvent]:
    wake = _Awakening()
    with await to_thread.run_sync(feed.listening, wake, limiter=readers):
        while True:
            wake.clear()
            events = await to_thread.run_sync(feed.events, after_id, _BATCH, limiter=readers)
            for event in events:
                after_id = event.id
                data = EventView.model_validate(event).model_dump_json()
                yield ServerSentEvent(id=str(event.id), event=event.kind, data=data)
            if (is_final and not events) or any(feed.is_last(event) for event in events):
                yield ServerSentEvent(event="end", data="{}")
                return
            if not events and not await wake.wait(feed.check_s):
                # The job may have ended, and the client may already have seen its last event.
                is_final = await to_thread.run_sync(feed.is_over, limiter=readers)


def _is_last(event: Event) -> bool:
    """Whether nothing more will happen to the job."""
    return event.kind == "state" and JobState(event.data["state"]).is_final
