"""A cluster whose parts die: real schedulers and workers, and a job that ends with every trial recorded once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from distributed.comm.core import connect
from distributed.core import send_recv
from distributed.protocol.serialize import ToPickle

from tests.service.dispatch.clusters import (
    HERE,
    Members,
    Process,
    ended,
    scheduler_process,
    wait_for_cards,
    worker_process,
)
from tests.service.dispatch.contracts import LIBRARY, PROBLEM, Watched, prepared_of
from tests.support.builders import spec
from tests.support.serving import wait_until_final
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import Measured
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.dispatcher import ClusterDispatcher
from tuner.dispatch.cluster.join import join_as_server
from tuner.dispatch.cluster.security import security_for
from tuner.service import Service
from tuner.store import Store

TARGET_ID = "simulated:h200"


@contextmanager
def serving(dispatcher: ClusterDispatcher, folder: Path) -> Iterator[Service]:
    service = Service(Store.open(folder), dispatcher)
    service.start()
    try:
        yield service
    finally:
        service.close()


def check_ended(service: Service, job_id: str, num_trials: int) -> None:
    """Checks that the job ends with every trial recorded once."""
    wait_until_final(service, job_id)
    job = service.job(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "")
    whole = service.trials(job_id, limit=500).items
    assert [trial.number for trial in whole] == list(range(num_trials))
    assert len({trial.candidate for trial in whole}) == num_trials, "a candidate was tried again"


def wait_for_trials(service: Service, job_id: str, at_least: int) -> None:
    wait_until(lambda: service.job(job_id).num_trials >= at_least)


# In CI, workers that are cut off or never answered join again, and test_cluster.py goes on with another card.
@pytest.mark.soak
def test_a_job_ends_though_the_scheduler_is_killed_and_then_the_worker_that_measures_it(tmp_path: Path) -> None:
    tls = create(tmp_path / "tls", ["any"], 1)[0]
    log = tmp_path / "log"
    with ended([]) as processes:
        scheduler, address = scheduler_process(log, tls=tls)
        processes.append(scheduler)
        slow = ("--tls", str(tls), "--count", "1")
        workers = [worker_process(address, log, name, *slow) for name in ("one", "two")]
        processes += workers
        dispatcher = join_as_server(address, tls, insecure=False)
        with serving(dispatcher, tmp_path / "data") as service:
            wait_for_cards(dispatcher, 2)
            job, _ = service.submit(spec(trials=16))
            wait_for_trials(service, job.id, 3)
            scheduler.end()
            processes[0], _ = scheduler_process(log, int(address.rpartition(":")[2]), tls)
            wait_for_cards(dispatcher, 2)
            seen = service.job(job.id).num_trials
            wait_for_trials(service, job.id, min(seen + 3, 16))
            workers[0].end()
            wait_until(lambda: dispatcher.quarantine(TARGET_ID, 0) or dispatcher.quarantine(TARGET_ID, 1))
            check_ended(service, job.id, 16)


@pytest.mark.slow
def test_ten_workers_that_join_at_once_all_measure_and_a_job_ends(tmp_path: Path) -> None:
    members = Members(security_for("tcp://127.0.0.1:1", None), tmp_path)
    dispatcher = members.dispatcher()
    with serving(dispatcher, tmp_path / "data") as service:
        cards = [Watched() for _ in range(10)]
        joining = [
            threading.Thread(target=members.add_worker, args=([card],), kwargs={"name": f"w{number}"})
            for number, card in enumerate(cards)
        ]
        for thread in joining:
            thread.start()
        for thread in joining:
            thread.join()
        wait_for_cards(dispatcher, 10)
        running = [dispatcher.lane(TARGET_ID, n).measure(PROBLEM, prepared_of(cards[0], LIBRARY)) for n in range(10)]
        wait_until(lambda: all(card.num_measuring == 1 for card in cards))
        for card in cards:
            card.may_go.set()
        assert all(isinstance(future.result(120), Measured) for future in running)
        service.ready()
        job, _ = service.submit(spec(trials=3))
        check_ended(service, job.id, 3)
    members.close()


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_neither_scheduler_nor_worker_unpickles_or_runs_what_a_peer_sends(tmp_path: Path) -> None:
    proof = tmp_path / "was unpickled"
    members = Members(security_for("tcp://127.0.0.1:1", None), tmp_path)
    watched = Watched()
    worker = members.add_worker([watched])

    async def attack(address: str) -> None:
        for op in ("identity", "run", "update-graph", "run_function", "tuner_call"):
            with suppress(OSError, TimeoutError, Exception):
                comm = await connect(address, deserialize=False)
                evil = {"payload": ToPickle(Evil(proof)), "function": ToPickle(Evil(proof))}
                await asyncio.wait_for(send_recv(comm, op=op, **evil), 2)

    for address in (members.scheduler.address, worker.address):
        asyncio.run(attack(address))
    assert not proof.exists()
    dispatcher = members.dispatcher()
    wait_for_cards(dispatcher, 1)
    assert {"run", "plugin-add", "update_data", "upload_file"}.isdisjoint(worker.handlers)
    assert {"run_function", "register-client", "register_scheduler_plugin"}.isdisjoint(members.scheduler.handlers)
    dispatcher.close()
    members.close()


def test_nobody_joins_without_a_certificate_of_the_authority(tmp_path: Path) -> None:
    ours, theirs = (create(tmp_path / name, ["any"], 1)[0] for name in ("ours", "theirs"))
    members = Members(security_for("tls://127.0.0.1:1", ours), tmp_path)
    members.add_worker([Watched()])
    stranger = ClusterDispatcher(members.scheduler.address, security_for("tls://127.0.0.1:1", theirs), first_poll_s=1.0)
    assert stranger.targets == ()
    stranger.close()
    friend = members.dispatcher()
    assert [target.id for target in friend.targets] == [TARGET_ID]
    friend.close()
    members.close()


class Cable:
    """Forwards bytes between a worker and the scheduler until it is cut; later bytes are silently dropped.

    After a loss, nothing more arrives on a connection, not even its end. The cable is also cut after the first message
    that contains `ends_with`, so the response to that message is lost.
    """

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition("://")[2].rpartition(":")
        self._to = host, int(port)
        self.is_severed = False
        self.ends_with = b""
        self.num_lost = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def lay(self) -> str:
        """Opens the near end."""
        self._server = await asyncio.start_server(self._join, HERE, 0)
        return f"tcp://{HERE}:{self._server.sockets[0].getsockname()[1]}"

    async def take_up(self) -> None:
        """Opens the far end."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._to)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_lost = False
        with suppress(OSError):
            while data := await reader.read(65536):
                has_lost = has_lost or self.is_severed
                if has_lost:
                    self.num_lost += 1
                    continue
                writer.write(data)
                if self.ends_with and self.ends_with in data:  # otherwise a test may cut it in another thread just now
                    self.is_severed = True
        if not has_lost:
            with suppress(OSError):
                writer.close()


def test_a_worker_that_is_cut_off_is_given_up_in_time_and_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.WORKER_TTL_S", 1.0)
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.JOIN_S", 2.0)
    members = Members(security_for("tcp://127.0.0.1:1", None), tmp_path)
    cable = Cable(members.scheduler.address)
    watched = Watched()
    members.run_worker([watched], cable.lay())
    dispatcher = members.dispatcher()
    wait_for_cards(dispatcher, 1)
    cable.is_severed = True
    wait_until(lambda: "left the cluster" in getattr(dispatcher.quarantine(TARGET_ID), "reason", ""))
    cable.is_severed = False
    wait_for_cards(dispatcher, 1)
    dispatcher.close()
    members.do(cable.take_up())
    members.close()


def test_a_worker_whose_joining_was_never_answered_joins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.WORKER_TTL_S", 1.0)
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.JOIN_S", 2.0)
    members = Members(security_for("tcp://127.0.0.1:1", None), tmp_path)
    cable = Cable(members.scheduler.address)
    cable.ends_with = b"register-worker"
    members.run_worker([Watched()], cable.lay())
    wait_until(lambda: cable.num_lost > 0)
    cable.ends_with, cable.is_severed = b"", False
    wait_until(lambda: not members.scheduler.workers, 30)
    dispatcher = members.dispatcher()
    wait_for_cards(dispatcher, 1)
    dispatcher.close()
    members.do(cable.take_up())
    members.close()


# In CI, a worker leaves in test_cluster.py, and is killed in the first test.
@pytest.mark.soak
@pytest.mark.slow
def test_a_worker_stops_at_a_word_and_its_card_is_in_quarantine_then(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ended([]) as processes:
        scheduler, address = scheduler_process(log)
        worker: Process = worker_process(address, log, "one")
        processes += [scheduler, worker]
        dispatcher = join_as_server(address, None, insecure=False)
        wait_for_cards(dispatcher, 1)
        worker.kill(15)
        assert worker.wait() == 0, log.read_text()
        wait_until(lambda: dispatcher.quarantine(TARGET_ID) is not None)
        dispatcher.close()
        scheduler.kill(15)
        assert scheduler.wait() == 0, log.read_text()
