"""The service over HTTP: documents are plain dicts, errors are exceptions."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast
from urllib.parse import quote

import httpx

from tuner import __version__
from tuner.client.connection.addresses import is_batch
from tuner.client.connection.config import DEFAULT_URL
from tuner.client.connection.event_lines import parse_events
from tuner.client.connection.network import checked_url, remedy_of, ways_to
from tuner.client.connection.problems import error_of, unsendable
from tuner.client.delivery.artifact import Artifact, check_is, open_artifact
from tuner.client.delivery.signatures import check_signed
from tuner.client.documents.batch_documents import Batch, BatchBest, BatchJob
from tuner.client.documents.documents import Best, Job, JobDetail, Trial
from tuner.client.errors import (
    Incompatible,
    JobFailed,
    NothingSeen,
    NoToken,
    Refused,
    TimedOut,
    Unreachable,
)
from tuner.versions import DISTRIBUTION, SIGNATURE_HEADER, WIRE_HEADER, WIRE_VERSION

Json = dict[str, Any]

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
#: The server sends a comment every 15 s; a longer silence means that the connection is dead.
_STREAM_SILENCE_S = 40.0
_RETRY_S = 1.0
#: Delay before the first poll for an inspection; it grows up to `_RETRY_S`.
_FIRST_POLL_S = 0.1
#: Time limit for a whole response. The largest are artifacts of a few hundred kilobytes, and traces.
_ANSWER_DEADLINE_S = 120.0
_MAX_ANSWER_BYTES = 512 * 2**20
#: Every object in a response of the API has one of these fields.
_OWN_FIELDS = frozenset(
    {"id", "items", "job_id", "match", "candidate", "traceEvents", "status", "token_id", "digest", "num_imported"}
)
#: How long a stream waits for a server that does not respond: long enough for a restart.
PATIENCE_S = 60.0


class Client:
    """A connection to one service. Every method raises only `ClientError`s.

    Args:
        url: address of the service.
        token: None if the service needs none.
        transport: replaces the network, for tests.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, token: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        if token and not (token.isascii() and token.isprintable()):
            raise NoToken("the token has invalid characters; pass it exactly as it was shown, on one line")
        headers = {WIRE_HEADER: str(WIRE_VERSION)} | ({"Authorization": f"Bearer {token}"} if token else {})
        #: Whether every response so far had a version, as this service's responses do.
        self.is_known = True
        hooks = {"response": [self._check_version]}
        try:
            address = checked_url(self.url)
            if address.scheme not in ("http", "https") or not address.host:
                raise ValueError("it begins with neither http:// nor https://, or has no host")
        except ValueError as error:
            raise Unreachable(f"{url} is not an address: {error}; use one like {DEFAULT_URL}") from error
        of_given = None, Json(transport=transport)
        self._proxy, ways = ways_to(address, os.environ) if transport is None else of_given
        self._http = httpx.Client(
            base_url=address, timeout=_TIMEOUT, headers=headers, event_hooks=hooks, trust_env=False, **ways
        )

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the connection."""
        self._http.close()

    def submit(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Submits a job; `body` has the form of `POST /jobs`. Returns the job, which may have existed already."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return cast(Job, self._json("POST", "/jobs", json=body, headers=headers))

    def job(self, job_id: str) -> JobDetail:
        """A job and its state."""
        return cast(JobDetail, self._named("id", job_id, _job_path(job_id)))

    def cancel(self, job_id: str) -> Job:
        """Cancels a job. If it has other owners (`owners` in the response), it continues for them."""
        return cast(Job, self._json("POST", f"{_job_path(job_id)}:cancel"))

    def change(self, some_id: str, verb: str) -> Json:
        """Applies `pause` or `resume` to a job or a batch, or `retry` to a job, which returns the new job."""
        return self._json("POST", f"{(_batch_path if is_batch(some_id) else _job_path)(some_id)}:{verb}")

    def delete(self, job_id: str) -> Job | None:
        """Deletes an ended job; None if it is gone. If others share its run, it stays, and is returned."""
        response = self._request("DELETE", _job_path(job_id))
        return None if response.status_code == httpx.codes.NO_CONTENT else cast(Job, self._document(response))

    def submit_batch(self, body: Json, *, idempotency_key: str | None = None) -> Batch:
        """Submits several jobs, with the body of `POST /batches`; returns the batch, which may have existed already."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return cast(Batch, self._json("POST", "/batches", json=body, headers=headers))

    def batch(self, batch_id: str) -> Batch:
        """A batch and its state."""
        return cast(Batch, self._named("id", batch_id, _batch_path(batch_id)))

    def batches(self, **filters: Any) -> Iterator[Batch]:
        """All batches, newest first."""
        return cast(Iterator[Batch], self._items("/batches", filters))

    def batch_jobs(self, batch_id: str) -> Iterator[BatchJob]:
        """The jobs of a batch: each a `job` with its `ladder` and its `m`."""
        return cast(Iterator[BatchJob], self._items(f"{_batch_path(batch_id)}/jobs", {"limit": 500}))

    def batch_best(self, batch_id: str) -> BatchBest:
        """Which kernel runs for which rows. `NoResult`: there is no such batch, or no result yet."""
        return cast(BatchBest, self._named("id", batch_id, f"{_batch_path(batch_id)}/best"))

    def cancel_batch(self, batch_id: str) -> Batch:
        """Cancels a batch, and its jobs without other owners."""
        return cast(Batch, self._json("POST", f"{_batch_path(batch_id)}:cancel"))

    def delete_batch(self, batch_id: str) -> list[str]:
        """Deletes an ended batch; returns the ids of its jobs that are kept, since others need them."""
        return list(self._json("DELETE", _batch_path(batch_id))["kept"])

    def whoami(self) -> Json:
        """Who the token belongs to, and what it allows. `NoToken`: the service requires a token, and this one is
        unknown."""
        return self._json("GET", "/whoami")

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """All jobs, newest first."""
        return cast(Iterator[Job], self._items("/jobs", filters))

    def trials(self, job_id: str, **filters: Any) -> Iterator[Trial]:
        """All trials of a job."""
        return cast(Iterator[Trial], self._items(f"{_job_path(job_id)}/trials", filters))

    def trial(self, job_id: str, number: int) -> Trial:
        """One trial. `NoResult`: it does not exist."""
        return cast(Trial, self._json("GET", f"{_job_path(job_id)}/trials/{number}"))

    def samples(self, job_id: str, number: int) -> Json:
        """The raw samples of a measured trial, round by round. `NoResult`: it does not exist, or its samples were
        deleted.
        """
        return self._json("GET", f"{_job_path(job_id)}/trials/{number}/samples")

    def study(self, job_id: str, **query: Any) -> Json:
        """A job's schedules side by side: `GET /jobs/{id}/study`."""
        return self._json("GET", f"{_job_path(job_id)}/study", params=_given(query))

    def targets(self) -> list[Json]:
        """GPUs of the server, the default first."""
        found = self._decoded(self._request("GET", "/targets"))
        if not isinstance(found, list):
            raise self._stranger()
        return found

    def best(self, job_id: str) -> Best:
        """The result of a job.

        Raises:
            JobFailed: it failed or was cancelled.
            NoResult: there is no such job, or no result yet.
        """
        job = self.job(job_id)
        if job["state"] in ("failed", "cancelled"):
            raise JobFailed(f"{job_id} {job['state']}" + (f": {job['reason']}" if job["reason"] else ""))
        return cast(Best, self._named("job_id", job_id, f"{_job_path(job_id)}/best"))

    def find_best(self, **query: Any) -> Json:
        """The best result for a pair on a target: `GET /best`, with its `match` and `differences`."""
        return self._json("GET", "/best", params=_given(query))

    def counters(
        self, job_id: str, number: int, metrics: Sequence[str] = (), *, timeout_s: float | None = None
    ) -> Json:
        """The hardware counters of a measured trial: the base set, or `metrics` by name. Requests them, and waits.

        Raises:
            NothingSeen: they could not be taken.
            Refused: the trial was not measured, or there is no such metric.
            TimedOut: `timeout_s` passed first.
        """
        body = {"metrics": list(metrics)} if metrics else {}
        return self._inspect(job_id, number, "counters", body, {}, timeout_s)

    def trace(self, job_id: str, number: int, *, format: str = "json", timeout_s: float | None = None) -> Json:
        """The in-kernel trace of a measured trial of a generated kernel; `perfetto` is a document for ui.perfetto.dev.

        Raises:
            NothingSeen: it could not be taken.
            Refused: the trial was not measured, or is not ours.
            TimedOut: `timeout_s` passed first.
        """
        return self._inspect(job_id, number, "trace", {}, {"format": format}, timeout_s)

    def _inspect(self, job_id: str, number: int, kind: str, body: Json, query: Json, timeout_s: float | None) -> Json:
        """Requests an inspection and waits for its result."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        path = f"{_job_path(job_id)}/trials/{number}/{kind}"
        response, pause_s = self._request("POST", path, json=body), _FIRST_POLL_S
        while response.status_code == httpx.codes.ACCEPTED:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(f"the {kind} of trial {number} of {job_id} are not ready; ask again")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S)
            response = self._request("GET", path)
        found: Json = self._document(response)
        if found.get("reason"):
            raise NothingSeen(f"the {kind} of trial {number} of {job_id} could not be collected: {found['reason']}")
        return self._json("GET", path, params=query) if query else found

    def artifact(self, digest: str, key: str | None = None) -> Artifact:
        """A kernel, with all digests checked; if `key` is given, also its signature by that public key."""
        answer = self._request("GET", f"/artifacts/{digest}")
        if key is not None:
            line = answer.headers[SIGNATURE_HEADER]
            check_signed(answer.content, f"{line}\n".encode() if line else b"", key)
        return open_artifact(answer.content, digest)

    def make_pack(self, order: Json) -> Json:
        """A signed pack of finished jobs; `order` has the form of `POST /packs`.

        Raises:
            NoResult: a shape has no result at one of its m.
        """
        return self._json("POST", "/packs", json=order)

    def import_winners(self, body: Mapping[str, Any]) -> Json:
        """Imports winners of an external search; `body` has the form of `POST /imports`."""
        return self._json("POST", "/imports", json=body)

    def content(self, digest: str) -> bytes:
        """The content that the service stores under a sha256, checked.

        Raises:
            NoResult: it stores no such content.
            Refused: it sends other content.
        """
        content = self._request("GET", f"/artifacts/{digest}").content
        if (found := hashlib.sha256(content).hexdigest()) != digest:
            raise Refused(f"{self.url} sent other content than requested: its sha256 is {found}, expected {digest}")
        return content

    def events(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[Json]:
        """A job's events from the first on, until it ends; a broken stream is resumed at the same event.

        Raises:
            TimedOut: `timeout_s` passed first.
            Unreachable: the server did not come back.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last_id, heard_at = "", time.monotonic()
        while True:
            try:
                for event in self._stream(job_id, last_id, deadline):
                    heard_at = time.monotonic()
                    if event["kind"] == "end":
                        return
                    last_id = str(event["id"])
                    yield event
                    check_deadline(job_id, deadline)
            except (httpx.TransportError, Unreachable) as error:
                check_deadline(job_id, deadline)
                if time.monotonic() - heard_at > PATIENCE_S or not last_id:
                    raise self._silent(error) from error
            except (ValueError, KeyError, TypeError) as error:
                raise self._stranger() from error
            check_deadline(job_id, deadline)
            time.sleep(_RETRY_S)

    def _stream(self, job_id: str, last_id: str, deadline: float | None) -> Iterator[Json]:
        """The events of one connection; the last one is of kind `end` if the job has ended."""
        silence_s = _STREAM_SILENCE_S if deadline is None else max(0.05, deadline - time.monotonic())
        timeout = httpx.Timeout(5.0, read=min(_STREAM_SILENCE_S, silence_s))
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with self._http.stream("GET", f"{_job_path(job_id)}/events", headers=headers, timeout=timeout) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                yield {"kind": "end"}
                return
            if response.is_error:
                raise error_of(self._read(response, time.monotonic() + _ANSWER_DEADLINE_S), self.url)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise self._stranger()
            yield from parse_events(response.iter_lines())

    def _check_version(self, response: httpx.Response) -> None:
        """Refuses a response in a different version of the wire format; one without a version may come from a proxy."""
        self.is_known = self.is_known and WIRE_HEADER in response.headers
        spoken = response.headers.get(WIRE_HEADER, str(WIRE_VERSION))
        if spoken != str(WIRE_VERSION):
            raise Incompatible(
                f"{self.url} speaks version {spoken} of the wire format, and this client, {DISTRIBUTION} "
                f"{__version__}, version {WIRE_VERSION}; install the version that {self.url}/livez names"
            )

    def _items(self, path: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        """The items of all pages."""
        query = _given(filters)
        while True:
            page = self._json("GET", path, params=query)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    def _json(self, method: str, path: str, **options: Any) -> Json:
        return self._document(self._request(method, path, **options))

    def _named(self, field: str, asked: str, path: str) -> Json:
        """The document at a path, whose id must be the requested one."""
        found = self._json("GET", path)
        check_is("what came back", field, found.get(field), asked)
        return found

    def _document(self, response: httpx.Response) -> Json:
        """The JSON object of a response of the API."""
        found = self._decoded(response)
        # Every such object has an id; JSON from another service does not.
        if not isinstance(found, dict) or not found.keys() & _OWN_FIELDS:
            raise self._stranger()
        return found

    def _decoded(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise self._stranger() from error

    def _stranger(self) -> Unreachable:
        return Unreachable(f"the server at {self.url} is not a tuner service; check the address, and any proxies")

    def _silent(self, error: Exception) -> Unreachable:
        through = "" if self._proxy is None else f" through {self._proxy}"
        return Unreachable(f"{self.url} does not answer{through}: {error or type(error).__name__}{remedy_of(error)}")

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A whole response, received before the deadline."""
        deadline = time.monotonic() + _ANSWER_DEADLINE_S
        try:
            with self._http.stream(method, path, **options) as head:
                response = self._read(head, deadline)
        except (httpx.TransportError, httpx.DecodingError, httpx.TooManyRedirects) as error:
            raise self._silent(error) from error
        except (TypeError, ValueError) as error:  # JSON body, or ASCII header
            raise Refused(f"the request cannot be sent: {unsendable(options.get('json'), error)}") from error
        if not response.is_success:
            raise error_of(response, self.url)
        return response

    def _read(self, head: httpx.Response, deadline: float) -> httpx.Response:
        """The response with its body. A slow body is aborted at the deadline, which a time limit per chunk would not
        detect."""
        body = bytearray()
        for chunk in head.iter_bytes():
            body += chunk
            if time.monotonic() > deadline:
                raise Unreachable(f"{self.url} did not complete its response in {_ANSWER_DEADLINE_S:g} s; try again")
            if len(body) > _MAX_ANSWER_BYTES:
                raise Unreachable(f"{self.url} sent more than {_MAX_ANSWER_BYTES} bytes; is it a tuner service?")
        headers = {name: head.headers.get(name, "") for name in ("content-type", SIGNATURE_HEADER)}
        return httpx.Response(head.status_code, headers=headers, content=bytes(body), request=head.request)


def _job_path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _batch_path(batch_id: str) -> str:
    return f"/batches/{quote(batch_id, safe='')}"


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def check_deadline(job_id: str, deadline: float | None) -> None:
    """Raises: TimedOut: the deadline (monotonic clock) has passed."""
    if deadline is not None and time.monotonic() >= deadline:
        raise TimedOut(f"{job_id} did not end within the time limit; the job continues, watch it again")
