"""Services and servers for tests: everything is real except the GPU, which is simulated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from tests.support.forked import Forked, command
from tests.support.waiting import wait_until
from tuner.api.app import create_app
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.evaluator import Evaluator
from tuner.dispatch import LocalDispatcher
from tuner.server.listening import listen
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator

#: A pair that a simulated H200 tunes in a fraction of a second.
SMALL_PAIR = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256, "dtype": "fp16"}


def body(**changes: Any) -> dict[str, Any]:
    """A body of `POST /jobs` for a small job."""
    return {"pair": SMALL_PAIR, "budget": {"trials": 12, "seconds": 600}, **changes}


@contextmanager
def running_service(
    path: Path,
    *,
    latency_s: float = 0.0,
    target: str | None = "simulated:h200",
    evaluators: Sequence[Evaluator] | None = None,
) -> Iterator[Service]:
    """A started service; without a target it measures nothing, and its jobs stay as they are."""
    if evaluators is None:
        evaluators = [] if target is None else [SimulatedEvaluator(parse_target(target), latency_s=latency_s)]
    service = Service(Store.open(path), LocalDispatcher(evaluators))
    service.start()
    try:
        yield service
    finally:
        service.close()


@contextmanager
def listening(service: Service, **options: Any) -> Iterator[str]:
    """The address of a server around `service`, in a thread of this process; `options` are those of `create_app`."""
    with listen("127.0.0.1", 0) as listener:
        app = create_app(service, **options)
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def wait_until_final(service: Service, job_id: str) -> str:
    """Returns the job's final state."""
    # A poll takes milliseconds of CPU time from the job: with 20 a second, 8 % of its time.
    wait_until(lambda: service.job(job_id).state.is_final, pause_s=0.15)
    return service.job(job_id).state


def wait_until_inspected(service: Service, job_id: str) -> None:
    """Returns when every inspection of the job has ended, so that its page no longer changes."""
    numbers = range(service.job(job_id).num_trials)

    def has_ended() -> bool:
        return all(inspection.finished_at is not None for inspection in service.inspections(job_id, numbers))

    wait_until(has_ended, pause_s=0.15)


class Server:
    """`tuner serve` in a separate process."""

    def __init__(self, data: Path, *options: str, port: int = 0, spawns: bool = False, **environment: str) -> None:
        self.log = data.with_suffix(".log")
        own = "serve", "--port", str(port), "--data", str(data), *options
        self.process = Forked(command, *own, log=self.log, spawns=spawns, **environment)
        self.url = self.process.line()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return urlsplit(self.url).port or 0

    def kill(self) -> None:
        """Kills the server without warning."""
        self.process.kill()

    def stop(self) -> int:
        """Asks the server to end; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
