"""What a worker says while no scheduler answers."""

from __future__ import annotations

import pytest

from tuner.dispatch.cluster.waiting import REMIND_S, Waiting


def test_a_wait_is_told_at_once_then_rarely_and_anew_after_joining(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    waiting = Waiting("tls://head:8786", lambda: now_s)
    for _ in range(40):
        waiting.failed("timed out after 15s")
        now_s += REMIND_S / 20
    first, reminder = (record.getMessage() for record in caplog.records)
    assert first.startswith("the scheduler tls://head:8786 does not answer (timed out after 15s); this worker joins")
    assert reminder == "the scheduler tls://head:8786 has not answered for 5 minutes; this worker still waits"
    waiting.joined()
    waiting.failed("the connection to it is lost")
    assert "(the connection to it is lost)" in caplog.records[-1].getMessage()
