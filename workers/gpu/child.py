"""The disposable process that owns one card: reads requests from a pipe, answers, and dies with its parent."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tuner.core.problem.gpu import LiveFacts
from tuner.errors import WorkerError
from tuner.private import FILE_MODE

from ..protocol.messages import (
    Answer,
    CountRequest,
    EnergyRequest,
    EvaluateAnswer,
    EvaluateRequest,
    FinalsRequest,
    Hello,
    PrepareRequest,
    Refusal,
    Request,
    StartRequest,
    TraceRequest,
)
from ..protocol.process import die_with_parent
from ..protocol.stopwatch import Stopwatch

if TYPE_CHECKING:
    from .session import Session

_PR_SET_PDEATHSIG = 1
#: Seconds to wait for the lock of a predecessor that is ending.
_LOCK_PATIENCE_S = 5.0


def lock_path(uuid: str) -> Path:
    """The file whose lock marks a card as in use."""
    return Path(tempfile.gettempdir()) / f"tuner-{uuid}.lock"


def lock_card(uuid: str) -> IO[str] | None:
    """The open, locked file, held until this process ends; None if another process holds it, or another user owns
    it."""
    try:  # any user could put a link there
        number = os.open(lock_path(uuid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    except OSError:
        return None
    file = os.fdopen(number, "r+")
    end = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return None
            time.sleep(0.02)
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            return file


def main(connection: Connection, uuid: str, parent_pid: int) -> None:
    """Imports, waits for the start request, opens the card, and serves requests until the pipe closes or the context
    is poisoned."""
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    missing = _import_all()
    start = _next_request(connection)
    if not isinstance(start, StartRequest):
        return
    lock = lock_card(uuid)
    if lock is None:
        connection.send(Refusal(reason=f"the GPU {uuid} is in use by another tuner (lock {lock_path(uuid)})"))
        return
    try:
        if missing is not None:
            raise missing
        session, hello = _open(start.tools_cubin, uuid)
    except Exception as error:  # whatever the error is, the supervisor must receive it
        reason = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        connection.send(Refusal(reason=reason))
        return
    connection.send(hello)
    while (request := _next_request(connection)) is not None:
        answer = _answer(session, request)
        connection.send(answer)
        if isinstance(answer, EvaluateAnswer):
            if answer.poisoned:
                return
            try:
                session.await_busily(connection.poll)
            except Exception:  # not a candidate's fault: the next caller finds no process, and starts one
                return


def _import_all() -> Exception | None:
    """Imports everything that takes a long time to load, without a context; an error of a missing package is reported
    later."""
    try:
        import cupyx  # noqa: F401 - CuPy itself does with its first kernel, which takes half a second

        from . import session  # noqa: F401
        from .library.vendor import preload

        preload()
    except Exception as error:
        return error
    return None


def _next_request(connection: Connection) -> Request | None:
    try:
        request: Request = connection.recv()
    except EOFError:
        return None
    return request


def _answer(session: Session, request: Request) -> Answer:
    try:
        match request:
            case PrepareRequest(problem=problem, picked=picked):
                return session.prepare(problem, picked)
            case EvaluateRequest():
                return session.evaluate(request.problem, request.work, request.incumbent_speedup)
            case FinalsRequest():
                return session.finals(request.problem, request.works, request.num_rounds, request.others)
            case EnergyRequest(problem=problem, work=work):
                return session.energy(problem, work)
            case CountRequest(problem=problem, work=work, metrics=metrics):
                return session.count(problem, work, metrics)
            case TraceRequest(problem=problem, work=work):
                return session.trace(problem, work)
            case StartRequest():
                raise WorkerError("it has started already")
    except (
        Exception
    ) as error:  # an error of a finalist's kernel, or of this program: it is reported, and the child is replaced
        return EvaluateAnswer(outcome=session.failure(error), poisoned=True)


def _open(tools_cubin: bytes, uuid: str) -> tuple[Session, Hello]:
    """Creates the context and checks that the card works.

    Raises:
        WorkerError: it does not, with the reason.
    """
    from .measuring.card import CardView
    from .session import Session

    watch = Stopwatch()
    view = CardView(uuid)
    session = Session(tools_cubin, view)
    view.remember_own()
    watch.ended("context")
    if trouble := session.trouble():
        raise WorkerError(trouble)
    facts, driver, clocks_mhz = live_facts(uuid, session.clusters()), _driver_version(), _clocks(uuid)
    watch.ended("probe")
    return session, Hello(facts=facts, driver=driver, clocks_mhz=clocks_mhz, stage_s=watch.stage_s)


def live_facts(uuid: str, clusters: tuple[tuple[int, int], ...] = ()) -> LiveFacts:
    """What the driver reports on the visible card, plus the `clusters` that it holds."""
    import cupy

    p = cupy.cuda.runtime.getDeviceProperties(0)
    memory_clock_khz, bus_bits = p.get("memoryClockRate", 0), p.get("memoryBusWidth", 0)
    return LiveFacts(
        name=p["name"].decode(),
        uuid=uuid,
        compute_capability=(p["major"], p["minor"]),
        num_sms=p["multiProcessorCount"],
        smem_per_sm_bytes=p["sharedMemPerMultiprocessor"],
        smem_per_cta_bytes=p["sharedMemPerBlockOptin"],
        registers_per_sm=p["regsPerMultiprocessor"],
        threads_per_sm=p["maxThreadsPerMultiProcessor"],
        l2_bytes=p["l2CacheSize"],
        dram_bytes=p["totalGlobalMem"],
        clock_mhz=_clocks(uuid).get("sm", p.get("clockRate", 0) // 1000),
        clusters=clusters,
        dram_bytes_per_s=2.0 * memory_clock_khz * 1e3 * bus_bits / 8,
    )


def _driver_version() -> str:
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def _clocks(uuid: str) -> dict[str, int]:
    """Maximum SM and memory clock, MHz, from NVML; empty if it reports none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return {
            "sm": int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            "memory": int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        }
    except pynvml.NVMLError:
        return {}
