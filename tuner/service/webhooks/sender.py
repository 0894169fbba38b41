"""Sends webhooks in separate threads: jobs do not wait for receivers, nor receivers for each other."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tuner import __version__
from tuner.core.access.signatures import DELIVERY_HEADER, SIGNATURE_HEADER, sign
from tuner.core.trial.records import Best, JobRecord, Webhook
from tuner.errors import InvalidInput, NotFound, StoreUnavailable
from tuner.logs import about
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.concurrency.waiting import Stopped
from tuner.service.webhooks.network import NoAnswer, post
from tuner.service.webhooks.policy import NotAllowed, WebhookPolicy
from tuner.store import Store
from tuner.store.jobs import jobs, webhooks
from tuner.store.results import bests
from tuner.versions import WIRE_HEADER, WIRE_VERSION

_log = logging.getLogger(__name__)

#: Pauses between attempts, seconds; after the last pause, one more attempt is made, and then the webhook is given up.
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
#: Time limit for an attempt, from the name's look-up to the answer's status, seconds.
ATTEMPT_S = 10.0
#: Polling interval for webhooks that are due, seconds.
PERIOD_S = 1.0
#: After a failure, a receiver is left alone for this long, seconds; the pause doubles after each further failure, up to
#: a maximum.
_REST_S, _MOST_REST_S = 5.0, 300.0
#: Maximum number of simultaneous attempts in total, each to a different receiver, and per host, so that none delays the
#: others.
_NUM_THREADS, _NUM_AT_HOST = 16, 4
#: With this status, a receiver refuses further attempts for a webhook.
_GONE = 410

#: Builds the body of a webhook from its job and the job's result.
BodyOf = Callable[[Webhook, JobRecord, Best | None], bytes]


class WebhookSender:
    """Works on the server that runs the jobs. Due webhooks are in the database, so a restart loses none. If the process
    is killed between a delivery and its record, the webhook is sent again, with the same name."""

    def __init__(
        self,
        store: Store,
        policy: WebhookPolicy,
        body_of: BodyOf,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`policy` says which addresses are allowed; `leads` tells whether this server runs the jobs, and so sends."""
        self._store = store
        self._policy = policy
        self._body_of = body_of
        self._clock = clock
        self._leads = leads
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._writer = RetryingWriter(store, self._stop)
        self._lock = threading.Lock()
        #: The hosts of receivers with a current attempt, by URL. For failed receivers: the number of failures in a row,
        #: and until when they are left alone, by the monotonic clock.
        self._busy: dict[str, str] = {}
        self._failing: dict[str, tuple[int, float]] = {}
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="webhook_sender")
        self._thread = threading.Thread(target=self._run, name="webhook_sender", daemon=True)

    @property
    def policy(self) -> WebhookPolicy:
        """Checks requested webhooks."""
        return self._policy

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end soon; an unfinished attempt is repeated after the next start."""
        self._stop.set()
        self._wake.set()

    def join(self) -> None:
        """Waits until the thread and the current attempts have ended; these have a deadline."""
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                while not self._stop.is_set() and self._leads() and self._hand_out():
                    pass
            except StoreUnavailable as error:
                _log.warning("webhooks wait: %s", error)
            except Exception:  # must not end the service; the next attempt may succeed
                _log.exception("webhooks cannot be sent")
            self._wake.wait(PERIOD_S)
            self._wake.clear()

    def _hand_out(self) -> bool:
        """Starts sending the webhook that is due first; returns whether there was one."""
        with self._lock:
            if len(self._busy) >= _NUM_THREADS:
                return False
            now, at_host = time.monotonic(), Counter(self._busy.values())
            # A receiver's failures are forgotten once its pause has been over for `_MOST_REST_S`.
            self._failing = {url: one for url, one in self._failing.items() if one[1] + _MOST_REST_S > now}
            resting = [url for url, (_, until) in self._failing.items() if until > now]
            full = [host for host, count in at_host.items() if count >= _NUM_AT_HOST]
            besides_urls = [*self._busy, *resting]
        with self._store.read() as session:
            webhook = webhooks.next_due(session, self._clock(), PAUSES_S[-1], full, besides_urls)
        if webhook is None:
            return False
        with self._lock:
            self._busy[webhook.url] = webhook.host
        self._pool.submit(self._deliver, webhook)
        return True

    def _deliver(self, webhook: Webhook) -> None:
        """Makes one attempt, and records it."""
        is_well = False
        try:
            with about(job_id=webhook.job_id):
                is_well = self._attempt(webhook)
        except (Stopped, NotFound):  # it stays due, or it was deleted with its job
            pass
        except Exception:
            _log.exception("%s cannot be sent", webhook.delivery)
        finally:
            with self._lock:
                del self._busy[webhook.url]
                num_failures, _ = self._failing.pop(webhook.url, (0, 0.0))
                if not is_well:
                    rest_s = min(_MOST_REST_S, _REST_S * 2**num_failures)
                    self._failing[webhook.url] = num_failures + 1, time.monotonic() + rest_s
            self._wake.set()

    def _attempt(self, webhook: Webhook) -> bool:
        """Makes one attempt; returns whether the receiver accepted the webhook."""
        problem, is_final = self._send(webhook)
        now = self._clock()
        if not problem:
            self._writer.write(partial(webhooks.delivered, seq=webhook.seq, now=now))
            _log.info("%s was delivered to %s", webhook.delivery, webhook.host)
            return True
        if is_final or webhook.num_attempts >= len(PAUSES_S):
            self._writer.write(partial(webhooks.give_up, seq=webhook.seq, now=now, reason=problem))
            _log.warning("%s to %s was given up: %s", webhook.delivery, webhook.host, problem)
            return False
        due_at = now + PAUSES_S[webhook.num_attempts]
        self._writer.write(partial(webhooks.postpone, seq=webhook.seq, due_at=due_at, reason=problem))
        _log.info("%s to %s will be tried again: %s", webhook.delivery, webhook.host, problem)
        return False

    def _send(self, webhook: Webhook) -> tuple[str, bool]:
        """Sends the webhook; returns why it was not accepted (empty if it was), and whether another attempt would be
        useless."""
        body = self._body(webhook)
        headers = {
            "Host": webhook.host,
            "Content-Type": "application/json",
            "User-Agent": f"tuner/{__version__}",
            WIRE_HEADER: str(WIRE_VERSION),
            DELIVERY_HEADER: webhook.delivery,
            SIGNATURE_HEADER: sign(self._policy.secret, body, self._clock()),
        }
        try:
            self._policy.check(webhook.url)  # the allowed addresses may have changed since it was submitted
        except InvalidInput as error:
            return str(error), True
        try:
            status = post(webhook.url, headers, body, self._policy, ATTEMPT_S)
        except (NotAllowed, NoAnswer) as error:
            return str(error), False
        return ("", False) if 200 <= status < 300 else (f"the answer was {status}", status == _GONE)

    def _body(self, webhook: Webhook) -> bytes:
        """The body of the webhook; raises `NotFound` if the job was deleted meanwhile."""
        with self._store.read() as session:
            job, best = jobs.get(session, webhook.job_id), bests.find(session, webhook.job_id)
        return self._body_of(webhook, job, best)
