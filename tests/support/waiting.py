"""Waits for a state rather than for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Maximum wait, seconds; less than the limit of a whole test.
LIMIT_S = 120.0


def wait_until(condition: Callable[[], bool], timeout_s: float = LIMIT_S, pause_s: float = 0.01) -> None:
    """Returns when the condition holds.

    Raises:
        AssertionError: it does not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(pause_s)
