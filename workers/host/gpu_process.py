"""The supervisor's side of the process at a card: a pipe, a deadline for every exchange, SIGKILL; and spare processes.

A hung kernel cannot be interrupted, and a faulting kernel poisons its process, so the process is disposable. The next
one is spawned before it is needed: it finishes its imports, and waits without lock and context for the start request. A
process asks to be killed when the *thread* that spawned it ends (PR_SET_PDEATHSIG), so use these objects only from
threads that live at least as long.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from multiprocessing.connection import Connection
from typing import Concatenate, ParamSpec, TypeVar

from tuner.core.trial.evaluator import Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import FailureKind
from tuner.errors import Quarantined, WorkerError
from tuner.processes import SPAWN

from ..gpu import child
from ..protocol import messages
from ..timing.library_choice import Picked

#: Seconds that are enough to read an answer that has arrived, and for a process to end after its pipe has closed.
_GRACE_S = 2.0

#: The process's main function, which takes the pipe, the card's UUID, and the supervisor's process id.
Main = Callable[[Connection, str, int], None]

#: Maximum spares. Imports take some seconds, and the finals of a ladder's jobs use a process every two seconds.
_MOST_SPARES = 2
#: If a spare is younger than this, in seconds, it may still be importing: then one more is kept.
_IMPORTED_S = 10.0

#: Number of problems whose library algorithms are remembered.
_MAX_PICKED = 64


P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[GpuProcesses, P], R]) -> Callable[Concatenate[GpuProcesses, P], R]:
    """A method of `GpuProcesses` that only one thread may run at a time."""

    @wraps(method)
    def locked(self: GpuProcesses, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class ChildLost(WorkerError):
    """The process died, or was killed at its deadline."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind

    def __reduce__(self) -> tuple[type[ChildLost], tuple[FailureKind, str]]:
        return type(self), (self.kind, str(self))


class GpuProcess:
    """One process: spawned, started, queried, killed."""

    def __init__(self, uuid: str, main: Main = child.main) -> None:
        """Spawns it; does not wait."""
        self._spawned_at = time.monotonic()
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=main, args=(theirs, uuid, os.getpid()), name=f"tuner {uuid}", daemon=True)
        self._process.start()
        theirs.close()
        #: Held while the pipe is closed or must stay open, since the descriptor of a closed pipe may be reused.
        self._pipe_lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    @property
    def age_s(self) -> float:
        """Seconds since it was spawned."""
        return time.monotonic() - self._spawned_at

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def send(self, request: messages.Request, deadline_s: float) -> None:
        """Sends a request; its answer comes after those of the earlier requests.

        Raises:
            ChildLost: it died, or did not read for `deadline_s` and was killed.
        """
        with self._deadline(deadline_s):
            self._pipe.send(request)

    def receive(self, deadline_s: float) -> messages.Answer:
        """The next answer.

        Raises:
            ChildLost: it died, its answer was invalid, or the deadline passed; in each case it is dead now.
        """
        with self._deadline(deadline_s):
            answer = pickle.loads(self._pipe.recv_bytes())
            if not isinstance(answer, messages.Answer):
                raise TypeError(f"a {type(answer).__name__}")
        return answer

    def end(self) -> None:
        """Sends SIGKILL and closes the pipe, so that no thread waits for an answer; any thread may call this. A process
        that waits inside the driver survives SIGKILL for a while, with its end of the pipe open."""
        with suppress(ValueError):  # another thread has closed it
            self._process.kill()
        with self._pipe_lock, suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process has ended; only for the thread that uses it."""
        self._process.kill()
        self._process.join(10)
        with self._pipe_lock:
            self._pipe.close()

    @contextmanager
    def _deadline(self, deadline_s: float) -> Iterator[None]:
        """Kills it if the block takes too long, since reading half a message blocks as well as waiting for one."""
        has_expired = threading.Event()

        def expire() -> None:
            has_expired.set()
            self.end()

        watch = threading.Timer(deadline_s, expire)
        watch.daemon = True
        watch.start()
        try:
            yield
        except Exception as error:  # whatever the error is, the process cannot be used any more
            watch.cancel()
            if isinstance(error, (EOFError, OSError)):
                self._process.join(_GRACE_S)  # the pipe ends a little before the process
            code = self._process.exitcode
            self.kill()
            if has_expired.is_set():
                reason = f"no answer within {deadline_s:g} s: the GPU process was killed"
                raise ChildLost(FailureKind.HANG, reason) from error
            if code is None:
                raise ChildLost(FailureKind.CRASH, f"the GPU process sent an invalid answer: {error}") from error
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise ChildLost(FailureKind.CRASH, f"the GPU process died ({ending})") from error
        finally:
            watch.cancel()


class GpuProcesses:
    """The process at one card, with a loaded problem, and the spares that replace it when it is lost.

    One thread sends requests. Other threads may call `leave`, and `close`, which waits until the requesting thread has
    its answer.
    """

    def __init__(
        self,
        uuid: str,
        tools_cubin: bytes,
        limits: Limits,
        *,
        main: Main = child.main,
        away: Callable[[], str] = str,
    ) -> None:
        """`limits` gives the deadlines for the start and for preparing a problem; each request has its own. While
        `away` returns a reason, no process is started on the card."""
        self._uuid = uuid
        self._tools_cubin = tools_cubin
        self._limits = limits
        self._main = main
        self._away = away
        #: The oldest first.
        self._spares = deque[GpuProcess]()
        self._current: GpuProcess | None = None
        #: The first message of the process at the card; None while it starts.
        self._hello: messages.Hello | None = None
        #: The problem that it has loaded, or was sent.
        self._problem: Problem | None = None
        self._is_preparing = False
        #: The chosen algorithms of recent problems, the latest last.
        self._picked: dict[Problem, Picked] = {}
        self._start_by = 0.0
        self._is_closed = False
        #: Held while a process is started, queried or dropped.
        self._lock = threading.RLock()
        #: Seconds of starting and preparing, by stage, since they were last returned.
        self._start_s: dict[str, float] = {}

    @property
    def pid(self) -> int | None:
        """Process id at the card."""
        return self._current.pid if self._current else None

    @_alone
    def hello(self) -> messages.Hello:
        """The first message of the process at the card, which has probed it.

        Raises:
            Quarantined: the card, the driver or an installed package does not work; the message says which.
        """
        self._started()
        assert self._hello is not None
        return self._hello

    @_alone
    def ready(self, problem: Problem) -> messages.Answer | None:
        """Has the child prepare `problem`; returns the reason if it cannot, else None.

        Raises:
            Quarantined: the card does not work.
            WorkerError: the process was lost meanwhile, which is not the candidate's fault.
        """
        process = self._started()
        try:
            if self._problem != problem:
                self._settle(process)
                self._send_problem(process, problem)
            answer = self._settle(process)
        except ChildLost as lost:
            self.drop()
            if reason := self._absence():
                raise Quarantined(reason) from lost
            raise WorkerError(f"while it prepared the problem: {lost}") from lost
        if isinstance(answer, messages.PrepareAnswer):
            self._start_s |= answer.stage_s
            if answer.picked:
                self._picked[problem] = answer.picked
                while len(self._picked) > _MAX_PICKED:
                    del self._picked[next(iter(self._picked))]
            return None
        self.replace(None)
        return answer

    def take_start_s(self) -> dict[str, float]:
        """Seconds that processes took to start and to prepare problems since the last call, by stage; excluding time in
        which a thread waited."""
        taken, self._start_s = self._start_s, {}
        return taken

    @_alone
    def ask(self, request: messages.Request, deadline_s: float) -> messages.Answer:
        """The answer of the process, which must have arrived; a lost or poisoned process is replaced.

        Raises:
            ChildLost: it died, or the deadline passed and it was killed.
            Quarantined: the card was given up during the request; that is not the candidate's fault.
        """
        assert self._current is not None
        try:
            self._current.send(request, deadline_s)
            answer = self._current.receive(deadline_s)
        except ChildLost:
            self.replace(self._problem)
            raise
        if isinstance(answer, messages.EvaluateAnswer) and answer.poisoned:
            self.replace(self._problem)
        return answer

    @_alone
    def replace(self, problem: Problem | None) -> None:
        """Kills the process at the card; a spare starts and prepares `problem` in the background."""
        self.drop()
        self._begin(problem)

    @_alone
    def drop(self) -> None:
        """Kills the process at the card."""
        if self._current is not None:
            self._current.kill()
        self._current, self._hello, self._problem, self._is_preparing = None, None, None, False

    def leave(self) -> None:
        """Kills the process at the card immediately, even during a request; any thread may call this. A thread that
        waits for its answer gets Quarantined.
        """
        current = self._current
        if current is not None:
            current.end()

    def close(self) -> None:
        """Kills all processes, and starts no more; any thread may call this. A thread that waits for an answer gets
        Quarantined first."""
        self._is_closed = True
        self.leave()
        with self._lock:
            self.drop()
            while self._spares:
                self._spares.popleft().kill()

    def _absence(self) -> str:
        """Why no process may be started on the card now; empty if one may."""
        return "this worker is closed" if self._is_closed else self._away()

    def _begin(self, problem: Problem | None) -> None:
        """Starts a spare on the card, and spawns the next spare.

        Raises:
            Quarantined: the card is not available now.
        """
        if reason := self._absence():
            raise Quarantined(reason)
        spare = next((one for one in self._taken_spares() if one.is_alive()), None)
        process = spare or GpuProcess(self._uuid, self._main)
        self._current, self._start_by = process, time.monotonic() + self._limits.start_deadline_s
        try:
            if self._is_closed:  # since the check above
                process.end()
            process.send(messages.StartRequest(tools_cubin=self._tools_cubin), self._limits.start_deadline_s)
            if problem is not None:
                self._send_problem(process, problem)
        except ChildLost:  # reported when it matters: the first answer is missing
            pass
        num_spares = _MOST_SPARES if spare and spare.age_s < _IMPORTED_S else 1
        while len(self._spares) < num_spares:
            self._spares.append(GpuProcess(self._uuid, self._main))

    def _taken_spares(self) -> Iterator[GpuProcess]:
        """The spares, each removed when it is returned."""
        while self._spares:
            yield self._spares.popleft()

    def _send_problem(self, process: GpuProcess, problem: Problem) -> None:
        request = messages.PrepareRequest(problem=problem, picked=self._picked.get(problem))
        process.send(request, self._limits.prepare_deadline_s)
        self._problem, self._is_preparing = problem, True

    def _started(self) -> GpuProcess:
        """The process at the card, alive and with a probed card.

        Raises:
            Quarantined: it does not start.
        """
        if self._current is not None and self._hello is not None and not self._current.is_alive():
            self.drop()  # it died between two candidates, so it is not a candidate's fault
        if self._current is None:
            self._begin(None)
        assert self._current is not None
        if self._hello is None:
            try:
                first = self._current.receive(max(_GRACE_S, self._start_by - time.monotonic()))
            except ChildLost as lost:
                self.drop()
                raise Quarantined(f"no process starts at the card: {lost}") from lost
            if not isinstance(first, messages.Hello):
                self.drop()
                raise Quarantined(
                    first.reason if isinstance(first, messages.Refusal) else ("it did not start with a greeting")
                )
            self._hello = first
            self._start_s |= first.stage_s
        return self._current

    def _settle(self, process: GpuProcess) -> messages.Answer:
        """The pending answer to a problem; success if there is none."""
        if not self._is_preparing:
            return messages.PrepareAnswer()
        self._is_preparing = False
        return process.receive(self._limits.prepare_deadline_s)
