"""The child process that holds the GPU of a worker to be killed: it only sleeps, and uses no GPU."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from tests.support.rogues import HELLO
from tuner.core.trial.outcome import Rejected, Stage
from tuner.workers.protocol import messages
from tuner.workers.protocol.process import die_with_parent


def child(connection: Connection, seconds: str, parent_pid: int) -> None:
    """Holds each candidate, and the rounds of finals in one process, for the given times (`seconds` is "0.1/2.0"); the
    worker's simulation gives the figures."""
    die_with_parent(parent_pid)
    trial_s, finals_s = map(float, seconds.split("/"))
    while True:
        match connection.recv():
            case messages.StartRequest():
                connection.send(HELLO)
            case messages.PrepareRequest():
                connection.send(messages.PrepareAnswer())
            case messages.FinalsRequest(works=works, num_rounds=num_rounds):
                time.sleep(finals_s if num_rounds > 1 else 0.0)  # one round tests whether a finalist is the cause
                rows = ((1.0,) * num_rounds,) * len(works)
                connection.send(messages.FinalsAnswer(times_us=rows, reasons=("",) * len(works), num_dropped=0))
            case _:
                time.sleep(trial_s)
                connection.send(messages.EvaluateAnswer(outcome=Rejected(stage=Stage.VERIFY, reason="")))
