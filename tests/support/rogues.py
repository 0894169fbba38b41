"""GPU children that misbehave: main functions of real processes that use no GPU."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from tuner.core.problem.gpu import LiveFacts
from tuner.core.trial.outcome import Failed, FailureKind, Stage
from tuner.workers.protocol import messages
from tuner.workers.protocol.process import die_with_parent
from tuner.workers.timing.library_choice import Picked

#: A hundred thousand sines, for which the compiler needs minutes.
ENDLESS = """
#define TEN(x) x x x x x x x x x x
extern "C" __global__ void k(float* x) {
  float y = *x;
  TEN(TEN(TEN(TEN(TEN(y = sinf(y) + x[int(y)];)))))
  *x = y;
}
"""

HELLO = messages.Hello(
    facts=LiveFacts(
        name="no card",
        uuid="GPU-0",
        compute_capability=(9, 0),
        num_sms=1,
        smem_per_sm_bytes=1,
        smem_per_cta_bytes=1,
        registers_per_sm=1,
        threads_per_sm=1,
        l2_bytes=1,
        dram_bytes=1,
        clock_mhz=1,
    ),
    driver="",
    clocks_mhz={},
)


def rogue(connection: Connection, uuid: str, parent_pid: int) -> None:
    """Behaves correctly until it is asked to evaluate; its UUID selects what it does then, or earlier."""
    die_with_parent(parent_pid)
    while True:
        match connection.recv(), uuid:
            case messages.StartRequest(), "refuses":
                connection.send(messages.Refusal(reason="the card is on fire"))
                return
            case messages.StartRequest(), "never starts":
                time.sleep(60)
            case messages.StartRequest(), _:
                connection.send(HELLO)
            case messages.PrepareRequest(), "dies preparing":
                os._exit(4)
            case messages.PrepareRequest(), "cannot prepare":
                failed = Failed(stage=Stage.LAUNCH, kind=FailureKind.OUT_OF_MEMORY, reason="it does not fit")
                connection.send(messages.EvaluateAnswer(outcome=failed, poisoned=True))
            case messages.PrepareRequest(picked=None), _:
                connection.send(messages.PrepareAnswer(picked=Picked(choices=(3, 1), first_us=2.0, best_us=1.0)))
            case messages.PrepareRequest(picked=picked), "keeps what was picked":
                connection.send(messages.PrepareAnswer(picked=replace(picked, first_us=picked.first_us + 1)))
            case messages.PrepareRequest(picked=picked), _:
                connection.send(messages.PrepareAnswer(picked=picked))
            case _, "hangs":
                time.sleep(60)
            case _, "hangs, and cannot be killed":
                if os.fork() == 0:  # its parent cannot tell: its end of the pipe outlives the SIGKILL
                    os.setsid()
                time.sleep(20)
            case _, "exits":
                os._exit(3)
            case _, "kills itself":
                os.kill(os.getpid(), 9)
            case _, "sends no pickle":
                connection.send_bytes(b"garbage")
                time.sleep(60)
            case _, "sends nothing in particular":
                connection.send({"time_us": 1.0})
                time.sleep(60)
            case _, "sends half a message":
                os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
                time.sleep(60)
            case _, "sends a negative length":
                os.write(connection.fileno(), struct.pack("!i", -2))
                time.sleep(60)
            case _, "is poisoned":
                failed = Failed(stage=Stage.CHECK, kind=FailureKind.ILLEGAL_ADDRESS, reason="planted")
                connection.send(messages.EvaluateAnswer(outcome=failed, poisoned=True))
                return
