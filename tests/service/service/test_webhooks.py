"""Webhooks: with a receiver on the loopback interface that accepts, fails, hangs, redirects and dies."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.service.service.helpers import Latch, evaluator, finish
from tests.support.builders import spec
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until
from tuner.core.access.caller import Caller, Role
from tuner.core.access.signatures import is_signed
from tuner.core.trial.job import JobTerms
from tuner.core.trial.records import Webhook, WebhookState
from tuner.dispatch import LocalDispatcher
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.service.webhooks import sender
from tuner.service.webhooks.network import NoAnswer, post
from tuner.service.webhooks.policy import NotAllowed, WebhookPolicy
from tuner.service.webhooks.sender import WebhookSender
from tuner.store import Store
from tuner.store.jobs import jobs, webhooks
from tuner.wire.responses.webhooks import JobEnded, job_ended_body

SECRET = "a secret of sixteen or more"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses pauses short enough for a test."""
    monkeypatch.setattr(sender, "PAUSES_S", (0.05, 0.1, 0.2))
    monkeypatch.setattr(sender, "PERIOD_S", 0.05)
    monkeypatch.setattr(sender, "_REST_S", 0.05)


class Services:
    """Consecutive services over one data folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now: Service | None = None

    def start(self, *hosts: str, latch: Latch | None = None) -> Service:
        self.close()
        store = Store.open(self.path)
        policy = WebhookPolicy(hosts=frozenset(hosts), secret=SECRET)
        self.now = Service(
            store, LocalDispatcher([latch or evaluator()]), webhook_sender=WebhookSender(store, policy, job_ended_body)
        )
        self.now.start()
        return self.now

    def close(self) -> None:
        if self.now is not None:
            self.now.close()
        self.now = None


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path / "data")
    yield services
    services.close()


def submit(service: Service, url: str, m: int = 16, **options: Any) -> str:
    return service.submit(spec(m, trials=3), terms=JobTerms(webhook=url), **options)[0].id


def only(service: Service, job_id: str) -> Webhook:
    (webhook,) = service.submissions.webhooks(job_id)
    return webhook


def ended(service: Service, job_id: str) -> Webhook:
    wait_until(lambda: only(service, job_id).ended_at is not None)
    return only(service, job_id)


@pytest.mark.slow
def test_the_end_of_a_job_is_told_once_signed_and_in_the_documented_form(services: Services) -> None:
    with Receiver() as receiver:
        service = services.start(receiver.host)
        job_id = submit(service, receiver.url("/hook?of=me"))
        submit(service, receiver.url("/hook?of=me"))  # asked twice
        webhook = ended(service, job_id)
        assert (webhook.state, webhook.num_attempts, webhook.reason) == (WebhookState.DELIVERED, 1, "")
        ((path, headers, body),) = receiver.got
        assert (path, headers["content-type"]) == ("/hook?of=me", "application/json")
        assert is_signed(SECRET, body, headers["tuner-signature"], time.time())
        assert not is_signed(SECRET + "!", body, headers["tuner-signature"], time.time())
        assert not is_signed(SECRET, body + b" ", headers["tuner-signature"], time.time())
        assert not is_signed(SECRET, body, headers["tuner-signature"], time.time() + 3600)
        body_of = JobEnded.model_validate_json(body)
        assert (body_of.delivery, body_of.job.id, body_of.job.state) == (headers["tuner-delivery"], job_id, "succeeded")
        assert body_of.result is not None
        assert body_of.result.artifact == service.best(job_id).artifact_digest


@pytest.mark.slow
def test_a_cancelled_job_is_told_too_and_one_that_has_ended_at_once(services: Services) -> None:
    with Receiver() as receiver:
        latch = Latch()
        service = services.start(receiver.host, latch=latch)
        job_id = submit(service, receiver.url())
        service.cancel(job_id)
        ended(service, job_id)
        latch.is_open.set()
        done = finish(service, service.submit(spec(32, trials=3))[0])
        again = submit(service, receiver.url("/late"), 32, reuse=True)
        assert (again, ended(service, again).state) == (done.id, WebhookState.DELIVERED)
        sent = {path: json.loads(body) for path, _, body in receiver.got}
        assert (sent["/hook"]["job"]["state"], sent["/hook"]["result"]) == ("cancelled", None)
        assert sent["/late"]["job"]["state"] == "succeeded"


@pytest.mark.slow
def test_what_fails_is_tried_again_under_the_same_name_until_it_is_taken_or_given_up(services: Services) -> None:
    with Receiver(status=500) as receiver:
        service = services.start(receiver.host)
        job_id = submit(service, receiver.url())
        wait_until(lambda: len(receiver.got) >= 2)
        receiver.status = 204
        assert ended(service, job_id).state is WebhookState.DELIVERED
        assert len({headers["tuner-delivery"] for _, headers, _ in receiver.got}) == 1
        receiver.status = 503
        lost = ended(service, submit(service, receiver.url(), 32))
        assert (lost.state, lost.num_attempts, lost.reason) == (WebhookState.FAILED, 4, "the answer was 503")
        receiver.status = 410
        assert ended(service, submit(service, receiver.url(), 64)).num_attempts == 1


@pytest.mark.slow
def test_a_receiver_that_hangs_holds_up_neither_jobs_nor_others(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ATTEMPT_S", 600.0)
    with Receiver(pause_s=600.0) as hanging, Receiver() as other:
        service = services.start(hanging.host, other.host)
        stuck, other_id = submit(service, hanging.url()), submit(service, other.url(), 32)
        assert finish(service, service.job(other_id)).state == "succeeded"
        assert ended(service, other_id).state is WebhookState.DELIVERED
        assert service.job(stuck).state == "succeeded"
        assert (only(service, stuck).state, only(service, stuck).num_attempts) == (WebhookState.DUE, 0)


def test_an_answer_that_does_not_come_or_drips_is_given_up_at_one_deadline() -> None:
    policy = WebhookPolicy(hosts=frozenset({"127.0.0.1"}))
    with Receiver(pause_s=60.0) as hanging, pytest.raises(NoAnswer, match="no answer in"):
        post(hanging.url(), {}, b"{}", policy, 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                while True:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(NoAnswer, match="no answer in"):
            post(f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, b"{}", policy, 0.5)


@pytest.mark.slow
def test_what_is_due_outlives_the_service_and_a_receiver_that_died(services: Services) -> None:
    receiver = Receiver()
    receiver.close()
    service = services.start(receiver.host)
    job_id = submit(service, receiver.url())
    wait_until(lambda: only(service, job_id).num_attempts >= 1)
    assert "no answer" in only(service, job_id).reason
    services.close()
    with Receiver(port=receiver.port) as back:
        service = services.start(receiver.host)
        assert ended(service, job_id).state is WebhookState.DELIVERED
        assert len(back.got) == 1


@pytest.mark.slow
def test_no_redirect_is_followed(services: Services) -> None:
    with Receiver() as other, Receiver(status=307) as receiver:
        receiver.location = other.url()
        service = services.start(receiver.host, other.host)
        lost = ended(service, submit(service, receiver.url()))
        assert (lost.state, lost.reason, other.got) == (WebhookState.FAILED, "the answer was 307", [])


def test_owners_of_one_run_are_told_each_and_who_leaves_is_not(services: Services) -> None:
    alice, bob = (Caller(owner=name, role=Role.SUBMIT, token_id="tok") for name in ("alice", "bob"))
    with Receiver() as receiver:
        latch = Latch()
        service = services.start(receiver.host, latch=latch)
        job_id = submit(service, receiver.url("/alice"), caller=alice)
        assert submit(service, receiver.url("/bob"), caller=bob) == job_id
        service.cancel(job_id, alice)
        latch.is_open.set()
        assert ended(service, job_id).state is WebhookState.DELIVERED
        assert [path for path, _, _ in receiver.got] == ["/bob"]


POLICY = WebhookPolicy(hosts=frozenset({"ci.example", "ci.example:8443", "127.0.0.1:9000", "localhost"}), secret=SECRET)


@pytest.mark.parametrize(
    "url", ["https://ci.example/x?y=1", "https://CI.example:443", "https://ci.example:8443/", "http://127.0.0.1:9000/a",
            "https://127.0.0.1:9000/a", "http://localhost/"],
)  # fmt: skip
def test_an_allowed_address_is_taken(url: str) -> None:
    POLICY.check(url)


@pytest.mark.parametrize(
    "url", ["http://ci.example/", "https://ci.example:444/", "https://example.org/", "http://127.0.0.1:9001/", "",
            "http://10.0.0.1/", "ftp://ci.example/", "https://user:word@ci.example/", "https://ci.example/#x",
            "ci.example", "https:///x", "https://ci.example:0/", "https://ci.example:99999/", "https://ci.example\\@evil.example/",
            "https://ci.example/\r\nHost: evil",
            "https://ci.example./", "http://[::1]/", "https://ci.éxample/"],
)  # fmt: skip
def test_any_other_address_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"webhook: .*; use https:// and one of the hosts"):
        POLICY.check(url)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1",
                "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "255.255.255.255"],
)  # fmt: skip
def test_a_name_that_leads_to_a_private_address_is_not_followed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family_and_rest: Any = (2, 1, 6, "")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(*family_and_rest, (address, 443))])
    with pytest.raises(NotAllowed, match="private"):
        POLICY.addresses("ci.example", 443)
    with pytest.raises(NotAllowed, match="private"):
        post("https://ci.example/", {}, b"", POLICY, 1.0)


def test_a_public_address_or_an_allowed_network_is_followed_and_localhost_is_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"ci.example": "10.1.2.3", "public.example": "93.184.216.34", "localhost": "10.1.2.3"}
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: [(2, 1, 6, "", (answers[host], 443))])
    inside = WebhookPolicy(hosts=POLICY.hosts, networks=(ip_network("10.1.0.0/16"),), secret=SECRET)
    assert inside.addresses("ci.example", 443) == ["10.1.2.3"]
    assert POLICY.addresses("public.example", 443) == ["93.184.216.34"]
    with pytest.raises(NotAllowed, match="not this machine"):
        POLICY.addresses("localhost", 80)


def test_a_receiver_gets_one_request_at_a_time_and_a_host_a_few_so_that_none_waits_for_others(tmp_path: Path) -> None:
    at = {url: host for host in ("slow:80", "fast:80") for number in range(5) for url in [f"http://{host}/{number}"]}
    handed: list[str] = []

    def hand_out(_: object, webhook: Webhook) -> None:
        handed.append(webhook.url)

    with closing(Store.open(tmp_path)) as store:
        with store.write() as session:
            for place, url in enumerate([*at, *at]):
                job = jobs.insert(session, spec(16 + 8 * place), 1.0)
                webhooks.ask(session, job.id, "", url, has_ended=True, now=2.0 + place)
        policy = WebhookPolicy(hosts=frozenset(at.values()), secret=SECRET)
        sending = WebhookSender(store, policy, job_ended_body)
        sending._pool.submit = hand_out  # type: ignore[assignment, method-assign]
        while sending._hand_out():
            pass
        assert handed == [url for url in at if not url.endswith("4")], "four of each host, each receiver once"
        del sending._busy[handed[0]]
        assert sending._hand_out()
        assert handed[-1].startswith("http://slow:80"), "the host has room again"
        assert handed[-1] not in handed[1:-1]
        sending._pool.shutdown()


# In CI, the test above has who is sent to.
@pytest.mark.soak
def test_a_receiver_that_says_nothing_holds_up_no_other_one_of_its_host(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ATTEMPT_S", 60.0)  # no attempt ends meanwhile, however slow the machine is
    with Receiver() as receiver:
        receiver.silent_at = tuple(f"/dead/{number}" for number in range(3))
        service = services.start(receiver.host)
        rows = enumerate((8, 24, 32, 48, 64, 96))  # of other tests, too, so that their spaces are listed once
        dead = [submit(service, receiver.url(f"/dead/{number % 3}"), m) for number, m in rows]
        wait_until(lambda: {path for path, _, _ in receiver.got} == set(receiver.silent_at))
        begin_s = time.monotonic()
        assert ended(service, submit(service, receiver.url("/live"))).state is WebhookState.DELIVERED
        assert time.monotonic() - begin_s < sender.ATTEMPT_S
        assert all(only(service, job_id).ended_at is None for job_id in dead)
        assert len(receiver.got) == 4, "a receiver gets one request at a time"
