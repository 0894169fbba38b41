"""What holds the card of a worker that is to be killed: a child process that takes its time, and touches no GPU."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from tests.support.rogues import HELLO
from tuner.core.trial.outcome import Rejected, Stage
from tuner.workers.protocol import messages
from tuner.workers.protocol.process import die_with_parent


def child(connection: Connection, seconds: str, parent_pid: int) -> None:
    """Keeps each candidate for so long; the figures are the twin's, in the worker."""
    die_with_parent(parent_pid)
    while True:
        match connection.recv():
            case messages.StartRequest():
                connection.send(HELLO)
            case messages.PrepareRequest():
                connection.send(messages.PrepareAnswer())
            case _:
                time.sleep(float(seconds))
                connection.send(messages.EvaluateAnswer(outcome=Rejected(stage=Stage.VERIFY, reason="")))
