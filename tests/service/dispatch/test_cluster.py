"""The cluster's implementation of the protocols passes their contracts, over mutual TLS on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.dispatch.clusters import Members, wait_for_cards
from tests.service.dispatch.contracts import (
    LIBRARY,
    OURS,
    PROBLEM,
    BuildPoolContract,
    MeasureLaneContract,
    Watched,
    prepared_of,
)
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import Target
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.outcome import Measured
from tuner.dispatch import BuildPool, MeasureLane
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.dispatcher import ClusterDispatcher
from tuner.dispatch.cluster.security import security_for
from tuner.dispatch.diagnosis import Check, Finding, diagnose_scheduler
from tuner.errors import NotFound, Quarantined, WorkerError
from tuner.service import Service
from tuner.store import Store

TARGET_ID = "simulated:h200"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("tls") / "tls", ["here"], 1)[0]


@pytest.fixture
def members(certificates: Path, tmp_path: Path) -> Iterator[Members]:
    members = Members(security_for("tls://127.0.0.1:1", certificates), tmp_path)
    yield members
    members.close()


@pytest.fixture
def watched(members: Members) -> Watched:
    watched = Watched()
    members.add_worker([watched])
    return watched


@pytest.fixture
def dispatcher(members: Members, watched: Watched) -> Iterator[ClusterDispatcher]:
    dispatcher = members.dispatcher()
    yield dispatcher
    watched.may_go.set()
    dispatcher.close()


class TestClusterBuilds(BuildPoolContract):
    @pytest.fixture
    def pool(self, dispatcher: ClusterDispatcher) -> BuildPool:
        return dispatcher.builds(TARGET_ID)


class TestClusterLane(MeasureLaneContract):
    @pytest.fixture
    def lane(self, dispatcher: ClusterDispatcher) -> MeasureLane:
        return dispatcher.lane(TARGET_ID)


def test_a_server_is_not_ready_before_a_worker_joins(members: Members, tmp_path: Path) -> None:
    service = Service(Store.open(tmp_path / "data"), members.dispatcher())
    service.start()
    try:
        with pytest.raises(WorkerError, match=r"the scheduler tls://.* has no worker with a card; start one with"):
            service.ready()
        members.add_worker([Watched()])
        wait_until(lambda: bool(service.targets()))
        assert service.ready() == {}
    finally:
        service.close()


def test_a_server_whose_scheduler_is_away_says_so(members: Members) -> None:
    dispatcher = ClusterDispatcher("tls://127.0.0.1:1", members.security)
    try:
        wait_until(lambda: "does not answer" in dispatcher.absence)
    finally:
        dispatcher.close()


@pytest.mark.slow
def test_a_worker_that_leaves_is_in_quarantine_until_it_is_back_and_another_card_goes_on(
    members: Members, watched: Watched, dispatcher: ClusterDispatcher
) -> None:
    seen: list[tuple[Target, int]] = []
    dispatcher.watch(lambda target, number: seen.append((target, number)))
    other = Watched()
    leaver = members.add_worker([other], name="other")
    wait_for_cards(dispatcher, 2)
    assert [number for _, number in seen] == [0, 1]
    running, waiting = (
        dispatcher.lane(TARGET_ID, 1).measure(PROBLEM, prepared_of(other, candidate)) for candidate in OURS[:2]
    )
    wait_until(lambda: other.num_measuring == 1)
    members.leave(leaver)
    for future in (running, waiting):
        with pytest.raises(Quarantined):
            future.result(120)
    wait_until(lambda: "it left the cluster" in getattr(dispatcher.quarantine(TARGET_ID, 1), "reason", ""))
    assert dispatcher.quarantine(TARGET_ID) is None, "one card is left"
    watched.may_go.set()
    other.may_go.set()
    on_the_other = dispatcher.lane(TARGET_ID, 0).measure(PROBLEM, prepared_of(watched, OURS[0]))
    assert isinstance(on_the_other.result(120), Measured)
    members.add_worker([Watched()], name="other")
    wait_for_cards(dispatcher, 2)
    assert [number for _, number in seen] == [0, 1], "the card is the same"


def test_builds_run_on_a_machine_without_cards(members: Members, dispatcher: ClusterDispatcher) -> None:
    members.add_worker([], name="cores", num_places=2)
    pool = dispatcher.builds(TARGET_ID)
    wait_until(lambda: pool.num_places == 5)
    # The card's own machine does not continue.
    futures = [pool.prepare(PROBLEM, candidate) for candidate in (*OURS, *OURS)]
    wait_until(lambda: sum(future.done() for future in futures) == len(futures) - 6)
    assert all(isinstance(future.result(), Prepared) for future in futures if future.done())


def test_a_worker_that_answers_garbage_is_not_asked_again_until_it_joins_anew(
    members: Members, watched: Watched, dispatcher: ClusterDispatcher
) -> None:
    async def answer(_: object) -> bytes:
        return b'{"value": {"time_us": "fast"}}'

    bad = members.add_worker([Watched("simulated:a40")], answer=answer, name="bad")
    wait_for_cards(dispatcher, 1, "simulated:a40")
    lane = dispatcher.lane("simulated:a40")
    with pytest.raises(Quarantined, match=r"answers garbage: .*; restart it"):
        lane.measure(PROBLEM, prepared_of(watched, LIBRARY)).result(120)
    with pytest.raises(Quarantined, match="restart it"):
        lane.probe().result(120)
    watched.may_go.set()
    built = dispatcher.builds("simulated:a40").prepare(PROBLEM, OURS[0])
    assert isinstance(built.result(120), Prepared), "the other one builds"
    members.leave(bad)
    well = Watched("simulated:a40")
    well.may_go.set()
    members.add_worker([well], name="bad")
    wait_for_cards(dispatcher, 1, "simulated:a40")
    assert isinstance(lane.measure(PROBLEM, prepared_of(well, LIBRARY)).result(120), Measured)


def test_a_worker_that_hangs_is_given_up_and_probed(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline_s = 0.0
    monkeypatch.setattr("tuner.dispatch.cluster.members.deadline_of", lambda *_: deadline_s)
    watched = Watched()
    members.add_worker([watched])
    dispatcher = members.dispatcher(slack_s=0.5)
    lane = dispatcher.lane(TARGET_ID)
    with pytest.raises(Quarantined, match=r"did not answer a measure within 0\.5 s"):
        lane.measure(PROBLEM, prepared_of(watched, LIBRARY)).result(120)
    with pytest.raises(Quarantined, match="did not answer a probe"):
        lane.probe().result(120)
    deadline_s = 60.0
    watched.may_go.set()
    wait_until(lambda: watched.num_measuring == 0)
    lane.probe().result(120)
    assert isinstance(lane.measure(PROBLEM, prepared_of(watched, LIBRARY)).result(120), Measured)
    dispatcher.close()


def test_what_announces_nothing_known_is_refused_and_said(
    members: Members, dispatcher: ClusterDispatcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announced = "tuner.dispatch.cluster.nodes.encode"
    monkeypatch.setattr(announced, lambda _: b'{"protocol": 2, "tuner_version": "9"}')
    members.add_worker([Watched("simulated:a40")], name="new")
    wait_until(lambda: "install the same version on both" in caplog.text)
    assert dispatcher.num_workers("simulated:a40") == 0
    assert [target.id for target in dispatcher.targets] == [TARGET_ID]


def test_a_target_that_nobody_serves_is_not_found(dispatcher: ClusterDispatcher) -> None:
    for find in (dispatcher.lane, dispatcher.builds):
        with pytest.raises(NotFound, match="no worker serves h200; available are: simulated:h200"):
            find("h200")


def test_closing_cancels_what_waits_and_leaves_the_workers(watched: Watched, dispatcher: ClusterDispatcher) -> None:
    lane, builds = dispatcher.lane(TARGET_ID), dispatcher.builds(TARGET_ID)
    running, waiting = (lane.measure(PROBLEM, prepared_of(watched, LIBRARY)) for _ in range(2))
    unbuilt: list[Any] = [builds.prepare(PROBLEM, OURS[0]) for _ in range(20)]
    wait_until(lambda: watched.num_measuring == 1)
    dispatcher.close()
    assert running.exception(0) is not None
    assert waiting.cancelled()
    assert unbuilt[-1].cancelled()
    assert all(future.done() for future in unbuilt)
    assert not watched.is_closed
    assert lane.measure(PROBLEM, prepared_of(watched, LIBRARY)).cancelled()


def test_the_doctor_asks_the_scheduler_who_is_there(members: Members, certificates: Path) -> None:
    def check_of(address: str, tls: Path | None = certificates, within_s: float = 60.0) -> Check:
        return diagnose_scheduler(address, tls, insecure=False, within_s=within_s)

    assert check_of(members.scheduler.address).finding is Finding.WARN
    members.add_worker([Watched(), Watched("simulated:a40")])
    found = check_of(members.scheduler.address)
    assert (found.finding, found.remedy) == (Finding.OK, "")
    assert "workers: 1, cards: 1 x simulated:a40, 1 x simulated:h200" in found.found
    wrong = (members.scheduler.address, None), ("tls://127.0.0.1:1", certificates), ("no address", certificates)
    for broken in (check_of(address, tls, within_s=3.0) for address, tls in wrong):
        assert (broken.finding, bool(broken.remedy)) == (Finding.FAIL, True), broken


def test_the_doctor_names_workers_of_another_version(
    members: Members, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.encode", lambda _: b'{"protocol": 2, "tuner_version": "9"}')
    members.add_worker([Watched()])
    found = diagnose_scheduler(members.scheduler.address, certificates, insecure=False, within_s=60.0)
    assert (found.finding, found.remedy) == (Finding.WARN, "install the same version on all machines")
