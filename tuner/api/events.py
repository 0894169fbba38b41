"""A job's events as a server-sent stream that resumes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from tuner.api.errors import PROBLEM_RESPONSES
from tuner.api.jobs import JobId
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Event
from tuner.service import Service
from tuner.wire.responses import EventView

_BATCH = 200
_WAIT_S = 1.0
#: Threads that wait for events; further watchers take turns, so that no request waits for a watcher.
_NUM_WAITERS = 16
_MAX_EVENT_ID = 2**63 - 1


def event_routes(service: Service) -> APIRouter:
    """What watchers hold open."""
    router = APIRouter(tags=["jobs"], responses=PROBLEM_RESPONSES)
    waiters = CapacityLimiter(_NUM_WAITERS)

    @router.get(
        "/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        responses={
            200: {"description": "Events `state`, `trial`, `best`, then `end`", "content": {"text/event-stream": {}}},
            204: {"description": "The job has ended, and the asker has seen all of it"},
        },
    )
    def stream_events(
        job_id: JobId,
        last_event_id: Annotated[int | None, Header(ge=0, le=_MAX_EVENT_ID)] = None,
        after: Annotated[int, Query(ge=0, le=_MAX_EVENT_ID, description="as Last-Event-ID, which goes first")] = 0,
    ) -> Response:
        """Everything that happened to a job and happens from now on, until it ends."""
        after_id = after if last_event_id is None else last_event_id
        is_final = service.job(job_id).state.is_final
        if is_final and last_event_id is not None and not service.events(job_id, after_id, 1):
            return Response(status_code=204)  # the one answer after which a browser does not reconnect
        return EventSourceResponse(_events(service, job_id, after_id, is_final, waiters))

    return router


async def _events(
    service: Service, job_id: str, after_id: int, is_final: bool, waiters: CapacityLimiter
) -> AsyncIterator[ServerSentEvent]:
    while True:
        events = await to_thread.run_sync(service.events, job_id, after_id, _BATCH)
        for event in events:
            after_id = event.id
            data = EventView.model_validate(event).model_dump_json()
            yield ServerSentEvent(id=str(event.id), event=event.kind, data=data)
        if (is_final and not events) or any(_is_last(event) for event in events):
            yield ServerSentEvent(event="end", data="{}")
            return
        found = await to_thread.run_sync(
            service.wait_for_event, job_id, after_id, _WAIT_S, limiter=waiters, abandon_on_cancel=True
        )
        if not found:  # perhaps it has ended, and the asker had seen the end already
            is_final = (await to_thread.run_sync(service.job, job_id)).state.is_final


def _is_last(event: Event) -> bool:
    """Whether nothing happens to the job any more."""
    return event.kind == "state" and JobState(event.data["state"]).is_final
