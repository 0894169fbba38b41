"""A worker that sends false results is distrusted, and the job continues."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.dispatch.clusters import Members, wait_for_cards
from tests.service.dispatch.contracts import LIBRARY, OURS, PROBLEM, Watched, prepared_of
from tests.support.builders import spec
from tests.support.lanes import one_in
from tests.support.liars import NUMBERS, lies
from tests.support.serving import wait_until_final
from tests.support.waiting import wait_until
from tuner.core.trial.believable import believe
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.job import JobState
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Outcome
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.gate import check_announcement
from tuner.dispatch.cluster.security import security_for
from tuner.dispatch.local import LocalLane
from tuner.errors import Quarantined, Unbelievable
from tuner.service import Service
from tuner.store import Store

TARGET_ID = "simulated:h200"

#: How to call a card's lane, by the name of the call.
ASK: dict[str, Callable[[Any, Prepared], Future[Any]]] = {
    "measure": lambda lane, prepared: lane.measure(PROBLEM, prepared),
    "finals": lambda lane, _: lane.finals(PROBLEM, (LIBRARY, OURS[0]), 3),
    "energy": lambda lane, _: lane.energy(PROBLEM, OURS[0]),
    "count": lambda lane, _: lane.count(PROBLEM, OURS[0], None),
    "trace": lambda lane, _: lane.trace(PROBLEM, OURS[0]),
    "artifact": lambda lane, _: lane.artifact(PROBLEM, OURS[0], {}),
}


def ready(target_id: str = TARGET_ID) -> Watched:
    watched = Watched(target_id)
    watched.may_go.set()
    return watched


@contextmanager
def members_with_liar(folder: Path, lie: Callable[[str, bytes], bytes]) -> Iterator[Members]:
    """A cluster whose only worker replaces each response with `lie(call name, honest response)`."""
    members = Members(security_for("tcp://127.0.0.1:1", None), folder)
    honest = WorkerCalls("liar", [ready()], folder / "liar", Limits(), num_places=2)

    async def answer(payload: object) -> bytes:
        said = await honest.answer(payload)
        return lie(messages.decode_call(payload).op, said)

    members.add_worker([ready()], answer=answer, name="liar")
    try:
        yield members
    finally:
        members.close()
        honest.close()


@pytest.mark.parametrize("op", ASK)
def test_a_lie_in_any_answer_ends_the_trust_in_who_told_it(tmp_path: Path, op: str) -> None:
    chance = random.Random(op)
    with members_with_liar(tmp_path, lambda said, answer: lies(answer, chance) if said == op else answer) as members:
        dispatcher = members.dispatcher()
        wait_for_cards(dispatcher, 1)
        lane = dispatcher.lane(TARGET_ID)
        prepared = dispatcher.builds(TARGET_ID).prepare(PROBLEM, OURS[0]).result(120)
        assert isinstance(prepared, Prepared)
        with pytest.raises(Quarantined, match=r"cannot be believed|answers garbage"):
            ASK[op](lane, prepared).result(120)
        assert lane.quarantine is not None
        assert "restart it" in lane.quarantine.reason
        with pytest.raises(Quarantined, match="restart it"):
            lane.probe().result(120)
        dispatcher.close()


def other_kernel(op: str, answer: bytes) -> bytes:
    """The files of another workload, which are consistent."""
    if op != "artifact":
        return answer
    said = json.loads(answer)
    said["value"]["manifest"]["workload_digest"] = "0" * 64
    return json.dumps(said).encode()


def too_few(op: str, answer: bytes) -> bytes:
    """Finals of one candidate where two were requested."""
    if op != "finals":
        return answer
    said = json.loads(answer)
    said["value"]["times_us"].pop()
    said["value"]["reasons"].pop()
    return json.dumps(said).encode()


def refuses(op: str, answer: bytes) -> bytes:
    """Refuses the request as if it were malformed."""
    error = {"kind": "invalid_input", "message": "no", "details": ["a", "b", "c"]}
    return json.dumps({"error": error}).encode() if op == "measure" else answer


@pytest.mark.parametrize(("op", "lie"), [("artifact", other_kernel), ("finals", too_few), ("measure", refuses)])
def test_an_answer_to_another_question_is_a_lie(tmp_path: Path, op: str, lie: Any) -> None:
    with members_with_liar(tmp_path, lie) as members:
        dispatcher = members.dispatcher()
        wait_for_cards(dispatcher, 1)
        with pytest.raises(Quarantined, match="cannot be believed"):
            ASK[op](dispatcher.lane(TARGET_ID), prepared_of(ready(), OURS[0])).result(120)
        dispatcher.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", one_in(3, [NUMBERS[0], -5, 1e308]))
def test_a_job_goes_on_without_the_worker_that_lies(tmp_path: Path, number: float) -> None:
    chance = random.Random(1)

    def lie(op: str, answer: bytes) -> bytes:
        return lies(answer, chance, number) if op == "measure" else answer

    with members_with_liar(tmp_path, lie) as members:
        dispatcher = members.dispatcher()
        service = Service(Store.open(tmp_path / "data"), dispatcher)
        service.start()
        try:
            wait_for_cards(dispatcher, 1)
            job, _ = service.submit(spec(trials=5))
            wait_until(lambda: dispatcher.quarantine(TARGET_ID) is not None)
            assert "restart it" in getattr(dispatcher.quarantine(TARGET_ID), "reason", "")
            members.add_worker([ready()], name="honest")
            assert wait_until_final(service, job.id) == JobState.SUCCEEDED
            found = service.trials(job.id, limit=100).items
            assert [trial.number for trial in found] == list(range(5))
            for trial in found:
                believe(trial.outcome)
            assert dispatcher.quarantine(TARGET_ID, 0) is not None, "it gets no further requests"
        finally:
            service.close()


def test_a_build_by_a_liar_is_made_by_another(tmp_path: Path) -> None:
    chance = random.Random(2)

    def lie(op: str, answer: bytes) -> bytes:
        return lies(answer, chance, float("nan")) if op == "prepare" else answer

    with members_with_liar(tmp_path, lie) as members:
        dispatcher = members.dispatcher()
        wait_for_cards(dispatcher, 1)
        built = dispatcher.builds(TARGET_ID).prepare(PROBLEM, OURS[0])
        wait_until(lambda: dispatcher.quarantine(TARGET_ID) is not None)
        members.add_worker([ready()], name="honest")
        assert isinstance(built.result(120), Prepared)
        dispatcher.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_places", 10**9), ("num_places", -1), ("compiler", "1\x00"), ("uuid", ""), ("uuid", "a\nb")],
)
def test_a_worker_that_cannot_be_does_not_join(tmp_path: Path, field: str, value: Any) -> None:
    said = WorkerCalls("w", [ready()], tmp_path, Limits(), num_places=1).announcement()
    check_announcement(said)
    changed = {"cards": (said.cards[0].model_copy(update={"uuid": value}),)} if field == "uuid" else {field: value}
    with pytest.raises(Unbelievable):
        check_announcement(said.model_copy(update=changed))
    with pytest.raises(Unbelievable, match="some are repeated"):
        check_announcement(said.model_copy(update={"cards": said.cards * 2}))


class Wrong(Watched):
    """A GPU of this machine whose clock is broken."""

    def measure(self, *arguments: Any) -> Outcome:
        return replace(super().measure(*arguments), time_us=float("nan"))  # type: ignore[call-arg]


def test_what_cannot_be_of_this_machine_is_a_failed_trial() -> None:
    evaluator = Wrong()
    evaluator.may_go.set()
    lane = LocalLane(evaluator)
    found = lane.measure(PROBLEM, prepared_of(evaluator, OURS[0])).result(120)
    assert isinstance(found, Failed)
    assert found.kind is FailureKind.INTERNAL
    assert "time_us is nan" in found.reason
    lane.close()
