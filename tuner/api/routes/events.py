"""The events of a job or a batch, as a server-sent event stream that can be resumed."""

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
#: Number of threads that read events for all streams; requests use other threads. A waiting stream occupies no thread.
_NUM_READERS = 8
#: Seconds between two checks, by an idle stream, that its job or batch still exists and is running.
_JOB_CHECK_S, _BATCH_CHECK_S = 10.0, 2.0
_MAX_EVENT_ID = 2**63 - 1
LastEventId = Annotated[int | None, Header(ge=0, le=_MAX_EVENT_ID)]
AfterEvent = Annotated[int, Query(ge=0, le=_MAX_EVENT_ID, description="like Last-Event-ID, which takes precedence")]
#: How long clients should wait after a refusal before they retry, seconds.
_RETRY_S = 10


class Seats:
    """Counts open streams up to a maximum. Only one event loop uses it."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[bool]:
        """Reserves a slot during the block; yields whether one was free."""
        if self._most is not None and self._taken >= self._most:
            yield False
            return
        self._taken += 1
        try:
            yield True
        finally:
            self._taken -= 1

    def refusal(self) -> Response:
        """The response if no slot is free."""
        detail = (
            f"{self._taken} event streams are open, which is the maximum: poll the job instead, or ask "
            "for a larger TUNER_MAX_CONNECTIONS; an eighth of these connections is reserved for requests"
        )
        return problem_response(problem(503, detail), {"retry-after": str(_RETRY_S), "connection": "close"})


class _Stream(EventSourceResponse):
    """Holds a slot for its lifetime."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], seats: Seats) -> None:
        super().__init__(events)
        self._seats = seats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Streams the events, or refuses."""
        with self._seats.one() as has_seat:
            await (super().__call__ if has_seat else self._seats.refusal())(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The source of a stream: the events of a job, or of a batch."""

    #: Called with an id and a maximum number; returns at most that many of the events after the id, oldest first.
    events: Callable[[int, int], Sequence[Event]]
    #: Within the block, the `Wake` is set whenever there may be new events.
    listening: Callable[[Wake], AbstractContextManager[None]]
    #: Interval of checks without a wake-up, seconds.
    check_s: float
    #: Whether no more events can follow.
    is_over: Callable[[], bool]
    #: Whether an event is certainly the last one.
    is_last: Callable[[Event], bool]

    def answer(self, last_event_id: int | None, after: int, readers: CapacityLimiter, seats: Seats) -> Response:
        """The response with all events after the last one that the client has received."""
        after_id = after if last_event_id is None else last_event_id
        is_final = self.is_over()
        if is_final and last_event_id is not None and not self.events(after_id, 1):
            return Response(status_code=204)  # the only response after which a browser does not reconnect
        return _Stream(_events(self, after_id, is_final, readers), seats)


def event_routes(service: Service, max_streams: int | None = None) -> APIRouter:
    """Returns the routes of event streams, of which at most `max_streams` may be open at a time."""
    router = APIRouter(tags=["jobs"], responses=PROBLEM_RESPONSES)
    readers, seats = CapacityLimiter(_NUM_READERS), Seats(max_streams)

    @router.get(
        "/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        responses={
            200: {"description": "Events `state`, `trial`, `best`, then `end`", "content": {"text/event-stream": {}}},
            204: {"description": "The job has ended, and the client has received all events"},
        },
    )
    def stream_events(job_id: JobId, last_event_id: LastEventId = None, after: AfterEvent = 0) -> Response:
        """All events of a job so far, then new ones until it ends."""
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
            204: {"description": "The batch has ended, and the client has received all events"},
        },
    )
    def stream_batch_events(batch_id: BatchId, last_event_id: LastEventId = None, after: AfterEvent = 0) -> Response:
        """All events of a batch's jobs so far, then new ones until it ends."""
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
        """May be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Resets it, so that earlier events do not count."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set within `timeout_s`."""
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
                # The job may have ended after the client received its last event.
                is_final = await to_thread.run_sync(feed.is_over, limiter=readers)


def _is_last(event: Event) -> bool:
    """Whether the job can have no more events."""
    return event.kind == "state" and JobState(event.data["state"]).is_final
