"""How processes are spawned: Ctrl-C is not for them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes and threads that this thread starts in the block take no SIGINT. A terminal sends it to the children,
    too, and one that still imports could not ignore it yet: it would end with a traceback."""
    resource_tracker.ensure_running()  # the first spawn would start it, and that unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
