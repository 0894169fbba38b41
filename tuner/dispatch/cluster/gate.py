"""Checks that data from a cluster's worker is plausible, and that it answers the call."""

from __future__ import annotations

from typing import Any

from tuner.core.trial.believable import believe
from tuner.core.trial.evaluator import ArtifactFiles, FinalsTimes, Prepared
from tuner.dispatch.cluster import messages
from tuner.errors import InvalidInput, TunerError, Unbelievable

_LONGEST_UUID = 200
_MOST_CARDS = 256
_MOST_PLACES = 4096
#: Maximum deadline of a worker, seconds; and maximum wait of a kernel, cycles.
_LONGEST_S, _LONGEST_CYCLES = 86_400.0, 10**13


def check_announcement(said: messages.Announcement) -> None:
    """Raises `Unbelievable` if the announcement is impossible."""
    for card in said.cards:
        believe(card.target, f"card {card.uuid[:80]!a}")
        believe(card.environment, f"card {card.uuid[:80]!a}")
        if not card.uuid.isprintable() or not 0 < len(card.uuid) <= _LONGEST_UUID:
            raise Unbelievable(f"a card has the name {card.uuid[:80]!a}, which no driver would use")
        if card.target.simulated != card.environment.simulated:
            raise Unbelievable(f"the card {card.uuid} is called both simulated and real")
    if len({card.uuid for card in said.cards}) != len(said.cards) or len(said.cards) > _MOST_CARDS:
        raise Unbelievable(f"{len(said.cards)} cards are announced, which is too many, or some are repeated")
    if not 0 <= said.num_places <= _MOST_PLACES:
        raise Unbelievable(f"{said.num_places} build places are announced; the maximum is {_MOST_PLACES}")
    for name, value in vars(said.limits).items():
        if value > (_LONGEST_CYCLES if name.endswith("_cycles") else _LONGEST_S):
            raise Unbelievable(f"{name} is {value:g}, which is too long for a deadline")
    believe([said.tuner_version, said.joining, said.compiler], "announcement")


def check_answer(call: messages.Call, answer: Any) -> None:
    """Raises `Unbelievable` if a figure in the answer is out of its range, or if the answer belongs to another call."""
    believe(answer)
    match call, answer:
        case messages.PrepareCall(), Prepared() if getattr(answer, "candidate", call.candidate) != call.candidate:
            raise Unbelievable("it prepared a different candidate than requested")
        case messages.FinalsCall(), FinalsTimes():
            _check_finals(call, answer)
        case messages.ArtifactCall(), ArtifactFiles():
            _check_artifact(call, answer)


def check_error(call: messages.Call, error: TunerError) -> None:
    """Raises `Unbelievable` if such a call cannot raise this error."""
    believe(str(error), "the reason")
    if isinstance(error, InvalidInput) and not isinstance(call, messages.CountCall):
        raise Unbelievable(f"it rejects a {call.op} as invalid: {str(error)[:200]}")


def _check_finals(call: messages.FinalsCall, times: FinalsTimes) -> None:
    if len(times.times_us) != len(call.candidates):
        raise Unbelievable(f"it timed {len(times.times_us)} candidates in finals of {len(call.candidates)}")
    if len(times.process_of_round) > 2 * call.num_rounds:
        raise Unbelievable(f"it ran {len(times.process_of_round)} rounds, but {2 * call.num_rounds} were requested")


def _check_artifact(call: messages.ArtifactCall, found: ArtifactFiles) -> None:
    """The kernel must belong to the candidate, for the requested workload."""
    schedule = call.candidate.schedule
    wanted = {
        "workload_digest": call.problem.workload.digest,
        "schedule_digest": schedule.digest if schedule else None,
        "plan_kind": str(call.candidate.plan_kind),
    }
    for name, digest in wanted.items():
        if found.manifest.get(name) != digest:
            raise Unbelievable(f"it made an artifact with a different {name} than requested")
