"""The messages between server and workers of a cluster: JSON that Pydantic decodes into the domain's own types."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, Measured, Rejected
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.errors import InvalidInput, Quarantined, TunerError, WorkerError
from tuner.workers.builder.shipping import ShippedKernel
from tuner.workers.simulated.evaluator import PreparedModel

#: Increased when a message changes in a way that the other side would misread.
PROTOCOL: Literal[4] = 4

T = TypeVar("T")


class NotUnderstood(WorkerError):
    """The received bytes are not a message of this protocol."""


class _Message(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )


class CardInfo(_Message):
    """A card of a worker."""

    #: The driver's, ``GPU-…``; generated for a simulated card.
    uuid: str
    target: Target
    environment: Environment


class Announcement(_Message):
    """A worker's description of itself, sent when it joins."""

    #: Must be `PROTOCOL`.
    protocol: Literal[4] = PROTOCOL
    tuner_version: str
    #: A new one each time the worker joins.
    joining: str
    cards: tuple[CardInfo, ...]
    #: Number of builds that run at a time.
    num_places: int
    #: The supported kinds of ops, and the version of each.
    kinds: dict[str, int]
    #: Version of NVRTC; empty if only simulated candidates can be prepared.
    compiler: str
    limits: Limits


class PrepareCall(_Message):
    """Prove, render and build a candidate for any target, not only the worker's own."""

    op: Literal["prepare"] = "prepare"
    target: Target
    problem: Problem
    candidate: Candidate


class MeasureCall(_Message):
    """Check and time a candidate that was prepared here or elsewhere."""

    op: Literal["measure"] = "measure"
    card: str
    problem: Problem
    prepared: PreparedModel | ShippedKernel
    incumbent_speedup: float | None


class FinalsCall(_Message):
    """Time the finalists against each other."""

    op: Literal["finals"] = "finals"
    card: str
    problem: Problem
    candidates: tuple[Candidate, ...]
    num_rounds: int
    torch_compile: bool = False


class EnergyCall(_Message):
    """Measure the energy per run."""

    op: Literal["energy"] = "energy"
    card: str
    problem: Problem
    candidate: Candidate


class CountCall(_Message):
    """Read hardware counters."""

    op: Literal["count"] = "count"
    card: str
    problem: Problem
    candidate: Candidate
    metrics: tuple[str, ...] | None


class TraceCall(_Message):
    """Trace a candidate."""

    op: Literal["trace"] = "trace"
    card: str
    problem: Problem
    candidate: Candidate


class ArtifactCall(_Message):
    """Make a candidate's files."""

    op: Literal["artifact"] = "artifact"
    card: str
    problem: Problem
    candidate: Candidate
    extra: dict[str, Any]


class ProbeCall(_Message):
    """Check whether the card is usable."""

    op: Literal["probe"] = "probe"
    card: str


CardCall = MeasureCall | FinalsCall | EnergyCall | CountCall | TraceCall | ArtifactCall | ProbeCall
Call = PrepareCall | CardCall
_CALL: TypeAdapter[Call] = TypeAdapter(Annotated[Call, Field(discriminator="op")])


class ErrorInfo(_Message):
    """An exception by its kind; exceptions that are not ours count as `WorkerError`."""

    kind: Literal["quarantined", "invalid_input", "worker"]
    message: str
    #: For `InvalidInput`: field, problem, remedy.
    details: tuple[str, str, str] | None = None


class Answer(_Message, Generic[T]):
    """The result of a call."""

    value: T | None = None
    error: ErrorInfo | None = None


PREPARED = Answer[PreparedModel | ShippedKernel | Rejected | Failed]
OUTCOME = Answer[Measured | Rejected | Failed]
FINALS = Answer[FinalsTimes]
ENERGY = Answer[EnergyReport]
COUNTERS = Answer[CounterReport]
TRACE = Answer[Trace]
FILES = Answer[ArtifactFiles]
NOTHING = Answer[None]

_ANSWERS: dict[str, type[Answer[Any]]] = {
    "prepare": PREPARED,
    "measure": OUTCOME,
    "finals": FINALS,
    "energy": ENERGY,
    "count": COUNTERS,
    "trace": TRACE,
    "artifact": FILES,
    "probe": NOTHING,
}


def encode(message: BaseModel) -> bytes:
    """The message as JSON."""
    return message.model_dump_json().encode()


def decode_call(payload: object) -> Call:
    """Inverse of `encode`.

    Raises:
        NotUnderstood: the bytes are not a call.
    """
    try:
        return _CALL.validate_json(_bytes(payload))
    except (ValidationError, TunerError) as error:
        raise NotUnderstood(f"this is not a call of protocol {PROTOCOL}: {_short(error)}") from error


def decode_announcement(text: object) -> Announcement:
    """Inverse of `encode`.

    Raises:
        NotUnderstood: the bytes are not an announcement of this protocol.
    """
    try:
        return Announcement.model_validate_json(_bytes(text))
    except (ValidationError, TunerError) as error:
        raise NotUnderstood(f"its announcement does not follow protocol {PROTOCOL}: {_short(error)}") from error


def answer_with(call: Call, value: object) -> bytes:
    """The answer to a call."""
    return encode(_ANSWERS[call.op](value=value))


def answer_error(error: BaseException) -> bytes:
    """The answer to a call that raised `error`."""
    match error:
        case Quarantined():
            info = ErrorInfo(kind="quarantined", message=str(error))
        case InvalidInput():
            details = error.field, error.problem, error.remedy
            info = ErrorInfo(kind="invalid_input", message=str(error), details=details)
        case WorkerError():
            info = ErrorInfo(kind="worker", message=str(error))
        case _:
            info = ErrorInfo(kind="worker", message=f"an error in the worker: {type(error).__name__}: {error}")
    return encode(NOTHING(error=info))


def decode_answer(op: str, payload: object) -> Any:
    """The result of a call of kind `op`.

    Raises:
        NotUnderstood: the bytes are not an answer to such a call.
        Quarantined, InvalidInput, WorkerError: the call raised it on the worker.
    """
    try:
        answer = _ANSWERS[op].model_validate_json(_bytes(payload))
    except (ValidationError, TunerError) as error:
        raise NotUnderstood(f"its answer to {op} does not follow protocol {PROTOCOL}: {_short(error)}") from error
    if answer.error is not None:
        raise _exception(answer.error)
    if answer.value is None and op != "probe":
        raise NotUnderstood(f"its answer to a {op} was empty")
    return answer.value


def _exception(info: ErrorInfo) -> TunerError:
    if info.kind == "quarantined":
        return Quarantined(info.message)
    if info.kind == "invalid_input" and info.details is not None:
        return InvalidInput(*info.details)
    return WorkerError(info.message)


def _bytes(payload: object) -> bytes:
    if isinstance(payload, str):
        return payload.encode()
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise NotUnderstood(f"got a {type(payload).__name__} instead of bytes")
    return bytes(payload)


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}"
    return str(error)
