"""What keeps a server safe and tells of its state: tokens, its leader, its cards, old jobs, slow peers, and the signals
that end it. No server is started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.support.builders import TARGET, spec
from tests.support.serving import listening
from tests.unit.store.test_gc import finished_job
from tuner.api.http.connection import protocol_with
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.evaluator import Quarantine
from tuner.core.trial.job import JobState
from tuner.dispatch import LocalDispatcher
from tuner.errors import InvalidInput, NotFound
from tuner.server import standby
from tuner.server.app import OpenToAll, _check_reach, _Ending, open_service
from tuner.server.standby import Standby
from tuner.service import Service
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.retention import Remover
from tuner.settings import Retention, Settings
from tuner.store import Store
from tuner.store.access import audit
from tuner.store.jobs import jobs, served
from tuner.workers.simulated.evaluator import SimulatedEvaluator


@pytest.mark.parametrize("stands_by", [False, True])
def test_a_server_beyond_loopback_needs_tokens_also_while_it_stands_by(store: Store, stands_by: bool) -> None:
    def check(host: str, **more: Any) -> None:
        _check_reach(Settings(data=store.directory, host=host, standby=stands_by, **more), store)

    for host in ("0.0.0.0", "::", "tuner.example"):
        with pytest.raises(OpenToAll, match="there are no tokens; create one with tuner token create"):
            check(host)
        check(host, insecure=True)
    check("127.0.0.1")


def test_who_stands_by_says_what_to_do_about_a_leader_that_is_silent_until_it_responds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    signs, now_s = iter([("7", 1), ("7", 1), ("7", 1), ("7", 1), ("7", 2)]), [0.0]
    leadership = SimpleNamespace(directory="/data", sign_of_life=lambda: next(signs))
    watching = Standby(leadership, lambda: None, lambda: None)  # type: ignore[arg-type]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    said = []
    for now_s[0] in (0.0, standby.SILENT_S, standby.SILENT_S + 1, standby.SILENT_S + 2, standby.SILENT_S + 3):
        watching._check_leader()
        said.append(watching.trouble)
    assert [bool(one) for one in said] == [False, False, True, True, False]
    assert "the server with the pid 7 has the lock of /data" in said[2]
    assert "`kill -CONT 7` resumes one that was stopped; after `kill -9 7` this server takes over" in said[2]
    assert [record.getMessage() for record in caplog.records] == [said[2]], "it is logged once"


def test_who_stands_by_refuses_what_the_leader_does_not_measure_and_takes_what_it_does(store: Store) -> None:
    service = Service(store, LocalDispatcher([]), leads=lambda: False)
    with store.write() as session:
        served.note(session, [parse_target(TARGET)])
    assert service.submit(spec())[0].spec.target_id == TARGET
    with pytest.raises(InvalidInput) as refused:
        service.submit(spec(target_id="h200"))
    assert (refused.value.field, refused.value.remedy) == ("target", f"use one of {TARGET}")
    assert refused.value.problem == "no worker of the server that runs the jobs measures on h200"
    leading = Service(store, LocalDispatcher([SimulatedEvaluator(parse_target(TARGET))]))
    with pytest.raises(InvalidInput, match="no worker of this server measures on h200"):
        leading.submit(spec(target_id="h200"))


def test_every_view_says_why_nothing_is_measured_and_forgets_it_afterwards(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = LocalDispatcher([SimulatedEvaluator(parse_target(TARGET))])
    service, html = Service(store, dispatcher), {"accept": "text/html"}
    monkeypatch.setattr(service._runners, "check_ready", lambda: None)
    job, _ = service.submit(spec())
    with listening(service) as url:
        for reason in ("", "345 of 1980 MHz", ""):
            quarantine = Quarantine(reason=reason, since=1.0) if reason else None
            monkeypatch.setattr(dispatcher, "quarantine", lambda *_, found=quarantine: found)
            (target,) = httpx.get(f"{url}/targets").json()
            assert (target["quarantine"] or {"reason": ""})["reason"] == reason
            assert (reason or "in quarantine") in httpx.get(url, headers=html).text or not reason
            assert ("in quarantine" in httpx.get(f"{url}/jobs/{job.id}").json()["reason"]) is bool(reason)
            assert httpx.get(f"{url}/livez").status_code == 200
            ready = httpx.get(f"{url}/readyz")
            assert ready.status_code == (503 if reason else 200)
            assert f"{TARGET} is in quarantine: {reason}" in ready.text or not reason
    dispatcher.close()


def test_a_cancelled_job_stays_so(store: Store) -> None:
    service = Service(store, LocalDispatcher([SimulatedEvaluator(parse_target(TARGET))]))
    job, _ = service.submit(spec())
    assert [service.cancel(job.id).state for _ in range(2)] == [JobState.CANCELLED] * 2
    with pytest.raises(NotFound, match="cancelled"):
        service.best(job.id)


@pytest.mark.parametrize("keeps_best", [False, True])
def test_retention_deletes_the_oldest_spares_the_best_and_is_in_the_audit_log(store: Store, keeps_best: bool) -> None:
    best, older, newest = (finished_job(store, None, m) for m in (32, 16, 16))
    with store.write() as session:
        jobs.set_state(session, jobs.insert(session, spec(64), 1.0).id, JobState.SEARCHING, 2.0)
    steps = ClockSteps(store, lambda: 9.0, lambda: 0.0)
    Remover(store, Retention(), lambda: 9.0, lambda: True, steps).tidy()
    service = Service(store, LocalDispatcher([]))
    assert len(service.jobs().items) == 4, "by default, all stay"
    kept = Retention(num_jobs=1, keeps_best=keeps_best)
    Remover(store, kept, lambda: 9.0, lambda: True, steps).tidy()
    gone = [older] if keeps_best else [best, older]
    left = {job.id for job in service.jobs().items if job.state is JobState.SUCCEEDED}
    assert left == {best, older, newest} - set(gone)
    for job_id in gone:
        with pytest.raises(NotFound, match="of the ended jobs, the server keeps the newest 1"):
            service.job(job_id)
    with store.read() as session:
        entries = audit.page(session, None, 9).items
    assert sorted((one.action, one.subject) for one in entries) == sorted(("job.expire", one) for one in gone)


def test_a_server_keeps_as_many_jobs_as_its_settings_say(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", gpu="none", keep_jobs=3, keep_best=False)
    service, _, _ = open_service(settings, lambda: None)
    (remover,) = (one for one in service._beside if isinstance(one, Remover))
    assert remover._retention == Retention(num_jobs=3, keeps_best=False)
    service.close()


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        """In place of the process's end."""

    def leave(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", leave)
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, text: written.append(text))
    ending, drained = _Ending(), list[bool]()
    server = SimpleNamespace(should_exit=False)
    ending.take_over(server, SimpleNamespace(begin_drain=lambda: drained.append(True)))  # type: ignore[arg-type]
    ending.on_signal(signal.SIGTERM, None)
    assert (server.should_exit, drained, written) == (True, [True], [])
    with pytest.raises(Ended, match=str(128 + signal.SIGTERM)):
        ending.on_signal(signal.SIGTERM, None)
    assert written == [b"asked twice: the service ends at once\n"]


def test_a_connection_that_says_nothing_or_takes_nothing_is_closed_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "connection_made", lambda *_: None)

    async def ways_to_end() -> list[str]:
        loop, ended = asyncio.get_running_loop(), list[str]()
        connection: Any = protocol_with(0.01)

        class Noting(connection):  # type: ignore[misc]
            """Without uvicorn's own part."""

            def __init__(self) -> None:
                self.loop, self.flow = loop, SimpleNamespace(pause_writing=lambda: None, resume_writing=lambda: None)
                self.transport = SimpleNamespace(
                    close=lambda: ended.append("closed"), abort=lambda: ended.append("cut")
                )

        silent = Noting()
        silent.connection_made(silent.transport)
        await asyncio.sleep(0.05)
        slow, taking = Noting(), Noting()
        slow.pause_writing()
        taking.pause_writing()
        taking.resume_writing()
        await asyncio.sleep(0.05)
        return ended

    assert asyncio.run(ways_to_end()) == ["closed", "cut"]
