"""A worker from the server's point of view: its announcement, and the connections to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distributed.comm.core import Comm, connect
from distributed.core import send_recv

from tuner.core.problem.op_kinds import usable_kinds
from tuner.core.trial.limits import Limits
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.gate import check_answer, check_error
from tuner.dispatch.cluster.nodes import CALL
from tuner.dispatch.local import THREADS_PER_PLACE
from tuner.errors import TunerError, Unbelievable, WorkerError

_log = logging.getLogger(__name__)

#: How much longer than its worker's own limits a call may take, seconds: for the transfer, and for the worker's queue.
SLACK_S = 60.0


class Lost(WorkerError):
    """A worker left, or was given up, before it answered."""


class Member:
    """One worker, from joining to leaving. Used in one event loop."""

    def __init__(
        self,
        address: str,
        text: str,
        announcement: messages.Announcement,
        connection_args: dict[str, Any],
        slack_s: float,
    ) -> None:
        self.address = address
        #: Its complete announcement, a new one each time it joins.
        self.text = text
        self.announcement = announcement
        #: Number of builds that were sent to it and are not finished.
        self.num_building = 0
        #: Why nothing more is sent to it; empty if it is trusted.
        self.distrust = ""
        self._slack_s = slack_s
        self._connection_args = connection_args
        self._free: list[Comm] = []
        self._busy: set[Comm] = set()
        self._gone = ""

    @property
    def may_build(self) -> bool:
        """Whether a build slot is free."""
        return not self.distrust and self.num_building < THREADS_PER_PLACE * self.announcement.num_places

    def can_build_for(self, call: messages.PrepareCall, compiler: str) -> bool:
        """Whether it has everything that the candidate needs, and its builds are usable for a card whose machine has
        `compiler`."""
        if lacking(call, self.announcement.kinds):
            return False
        return call.target.simulated or (bool(compiler) and self.announcement.compiler == compiler)

    async def ask(self, call: messages.Call, payload: bytes) -> Any:
        """Its answer to `call`, which `payload` encodes.

        Raises:
            Lost: it left, or did not answer in time.
            NotUnderstood: it sent an invalid or impossible answer, and is no longer trusted.
            Quarantined, InvalidInput, WorkerError: the call raised it on the worker.
        """
        deadline_s = deadline_of(call, self.announcement.limits) + self._slack_s
        try:
            answer = await asyncio.wait_for(self._exchange(payload), deadline_s)
        except TimeoutError as error:
            raise Lost(f"{self.address} did not answer a {call.op} within {deadline_s:g} s") from error
        except OSError as error:
            raise Lost(f"{self.address} was lost during a {call.op}: {self._gone or error}") from error
        except Exception as error:  # Dask could not read it
            raise self._distrusted(error) from error
        try:
            return _checked(call, answer)
        except (messages.NotUnderstood, Unbelievable) as error:
            raise self._distrusted(error) from error

    def _distrusted(self, error: Exception) -> messages.NotUnderstood:
        what = "cannot be believed" if isinstance(error, Unbelievable) else "answers garbage"
        self.distrust = f"{self.address} {what}: {error}; restart it"
        _log.error("%s; it gets no more work", self.distrust)
        return messages.NotUnderstood(self.distrust)

    async def _exchange(self, payload: bytes) -> object:
        comm = await self._connection()
        self._busy.add(comm)
        try:
            answer: object = await send_recv(comm, op=CALL, payload=payload)
        except BaseException:
            comm.abort()
            raise
        finally:
            self._busy.discard(comm)
        if self._gone:
            comm.abort()
        else:
            self._free.append(comm)
        return answer

    async def _connection(self) -> Comm:
        while self._free:
            comm = self._free.pop()
            if not comm.closed():
                return comm
        if self._gone:
            raise OSError(self._gone)
        made: Comm = await connect(self.address, deserialize=False, **self._connection_args)
        return made

    def leave(self, why: str) -> None:
        """Closes all connections: waiting callers get `Lost`."""
        self._gone = why
        for comm in (*self._free, *self._busy):
            with suppress(OSError):
                comm.abort()
        self._free.clear()


def lacking(call: messages.PrepareCall, versions: Mapping[str, int]) -> set[str]:
    """What a candidate needs and a worker with the announced `versions` lacks."""
    return {*call.problem.workload.needs, *call.candidate.needs}.difference(usable_kinds(versions))


def _checked(call: messages.Call, answer: object) -> Any:
    """The answer, if it is possible.

    Raises:
        NotUnderstood, Unbelievable: the answer does not belong to `call`, or is impossible.
        Quarantined, InvalidInput, WorkerError: the call raised it on the worker.
    """
    try:
        found = messages.decode_answer(call.op, answer)
    except messages.NotUnderstood:
        raise
    except TunerError as error:
        check_error(call, error)
        raise
    check_answer(call, found)
    return found


def deadline_of(call: messages.Call, limits: Limits) -> float:
    """The worker's own time limit for a call, seconds; generous, since the worker has its own deadlines."""
    start_s = 2 * limits.start_deadline_s + limits.prepare_deadline_s
    build_s = limits.build_deadline_s + limits.start_deadline_s
    match call:
        case messages.PrepareCall():
            return build_s
        case messages.MeasureCall():
            return build_s + start_s + limits.evaluate_deadline_s
        case messages.FinalsCall():
            # Twice in two processes, and each candidate alone if one disturbed the others.
            num_alone = len(call.candidates) + 4
            finals_s = num_alone * (start_s + limits.finals_s(len(call.candidates)))
            torch_s = limits.torch_compile_deadline_s if call.torch_compile else 0.0
            return len(call.candidates) * build_s + finals_s + torch_s
        case messages.CountCall():
            return build_s + start_s + limits.count_deadline_s
        case messages.TraceCall() | messages.EnergyCall():
            return build_s + start_s + limits.evaluate_deadline_s
        case messages.ArtifactCall():
            return build_s
        case messages.ProbeCall():
            return start_s
