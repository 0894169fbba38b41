"""Clusters on the loopback interface: members in this process with watched evaluators, and separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from distributed.security import Security

from tests.support.waiting import wait_until
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.limits import Limits
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.dispatcher import ClusterDispatcher
from tuner.dispatch.cluster.nodes import ClusterScheduler, ClusterWorker, prepare_process, run_worker

T = TypeVar("T")
HERE = "127.0.0.1"


class Members:
    """A scheduler and workers in this process: one thread, one event loop."""

    def __init__(self, security: Security, folder: Path) -> None:
        prepare_process()
        self.security = security
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="members", daemon=True)
        self._thread.start()
        self._stop: asyncio.Event | None = None
        self._runs: list[Future[None]] = []
        self._workers: list[tuple[ClusterWorker, WorkerCalls]] = []
        self.scheduler: ClusterScheduler = self.do(self._start_scheduler())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _start_scheduler(self) -> ClusterScheduler:
        protocol = "tls" if self.security.require_encryption else "tcp"
        return await ClusterScheduler(HERE, 0, protocol, self.security)

    def add_worker(
        self,
        evaluators: Sequence[Evaluator],
        *,
        num_places: int = 3,
        name: str = "w",
        limits: Limits | None = None,
        answer: Any = None,
    ) -> ClusterWorker:
        """Adds a worker with `evaluators`; `answer` replaces its responses."""
        calls = WorkerCalls(name, evaluators, self.folder, limits or Limits(), num_places=num_places)

        async def start() -> ClusterWorker:
            return await ClusterWorker(
                self.scheduler.address,
                self.security,
                calls.announcement(),
                answer or calls.answer,
                name=f"{name}-{len(self._workers)}",
                host=HERE,
                port=0,
                folder=str(self.folder),
            )

        worker = self.do(start())
        self._workers.append((worker, calls))
        return worker

    def run_worker(self, evaluators: Sequence[Evaluator], scheduler: Coroutine[Any, Any, str]) -> None:
        """Runs a worker that rejoins by itself, through another address of the scheduler."""
        calls = WorkerCalls("w", evaluators, self.folder, Limits(), num_places=1)

        async def run() -> None:
            address, self._stop = await scheduler, asyncio.Event()
            await run_worker(
                address,
                self.security,
                calls.announcement,
                calls.answer,
                self._stop,
                name="w",
                host=HERE,
                port=0,
                announce=lambda _: None,
            )
            await asyncio.to_thread(calls.close)

        self._runs.append(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def leave(self, worker: ClusterWorker) -> None:
        """Removes a worker."""
        self.do(worker.close(nanny=False))

    def dispatcher(self, slack_s: float = 20.0) -> ClusterDispatcher:
        return ClusterDispatcher(self.scheduler.address, self.security, slack_s=slack_s)

    def close(self) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        for run in self._runs:
            run.result(120)
        for worker, calls in self._workers:
            calls.close()
            self.do(worker.close(nanny=False))
        self.do(self.scheduler.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Process:
    """A `tuner` command that has printed its address."""

    def __init__(self, *command: str, log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.cli", *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def address(self) -> str:
        """The first address that the command printed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self.log.read_text()
        return line

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def end(self) -> int:
        """Kills the process and waits for it."""
        self.kill(signal.SIGCONT)
        self.kill()
        code = self._process.wait(120)
        if self._process.stdout:
            self._process.stdout.close()
        return code

    def wait(self, limit_s: float = 120) -> int:
        return self._process.wait(limit_s)


@contextmanager
def ended(processes: list[Process]) -> Iterator[list[Process]]:
    """Ends the processes of the list afterwards."""
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


def scheduler_process(log: Path, port: int = 0, tls: Path | None = None) -> tuple[Process, str]:
    """Starts `tuner scheduler`; returns it with its address."""
    how = ("--tls", str(tls)) if tls else ("--plain",)
    process = Process("scheduler", "--port", str(port), *how, log=log)
    return process, process.address()


def worker_process(scheduler: str, log: Path, name: str, *options: str, gpu: str = "simulated:h200") -> Process:
    """Starts `tuner worker`, which joins the scheduler."""
    own = ("--scheduler", scheduler, "--gpu", gpu, "--name", name, "--listen", HERE, "--places", "1")
    return Process("worker", *own, "--cache", str(log.parent / "builds"), *options, log=log)


def wait_for_cards(dispatcher: ClusterDispatcher, count: int, target_id: str = "simulated:h200") -> None:
    """Waits until `count` healthy GPUs have joined."""

    def num_fit() -> int:
        return sum(dispatcher.quarantine(target_id, n) is None for n in range(dispatcher.num_workers(target_id)))

    wait_until(lambda: num_fit() == count)
