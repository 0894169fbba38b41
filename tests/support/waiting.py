"""Waits for a state rather than for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Maximum wait, seconds; less than the limit of a whole test.
LIMIT_S = 120.0
#: Asking a server costs milliseconds of CPU time here and there: asked again and again, it would get no further.
_MAX_PAUSE_S = 0.1


def wait_until(condition: Callable[[], bool], timeout_s: float = LIMIT_S, pause_s: float = 0.01) -> None:
    """Returns when the condition holds. A pause between two evaluations is at least `pause_s`, and four times as long
    as an evaluation, up to 0.1 s.

    Raises:
        AssertionError: it does not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        begin = time.monotonic()
        if condition():
            return
        end = time.monotonic()
        assert end < deadline, "it took too long"
        time.sleep(max(pause_s, min(4 * (end - begin), _MAX_PAUSE_S)))
