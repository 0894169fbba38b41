"""A kernel that is ready to be launched, and its description of an abort."""

from __future__ import annotations

import ctypes
from typing import Any

from tuner.runtime.binding import native
from tuner.runtime.binding.native import AbortRecord, Choice, checked

#: Cached argument sets (addresses and rows) for each kernel: layers times numbers of rows.
NUM_CACHED = 256


class Prepared:
    """A kernel that is ready to be launched, with its memory."""

    def __init__(
        self,
        c: ctypes.CDLL,
        pack: ctypes.c_void_p,
        choice: Choice,
        memory: tuple[Any, int],
        *,
        stream: int,
        flags: int,
    ) -> None:
        """`memory` is a device array, which is kept alive, and an address in it."""
        self._c, (self._memory, address) = c, memory
        self.handle = ctypes.c_void_p()
        checked(c, c.tuner_ffn_prepare(pack, choice, address, stream, flags, NUM_CACHED, ctypes.byref(self.handle)))
        #: The address of the handle; None after it was freed.
        self.address: int | None = self.handle.value

    def abort(self) -> str:
        """Why a launch was aborted since the last reset, as a sentence; empty if none was."""
        record = AbortRecord()
        c = self._c
        if checked(c, c.tuner_abort_poll(self.handle, ctypes.byref(record))) != native.ABORTED:
            return ""
        return sentence_of(record)

    def reset(self, stream: int) -> None:
        """Resets its workspaces, once `stream` has finished its work."""
        checked(self._c, self._c.tuner_reset(self.handle, stream))

    def close(self) -> None:
        """Frees it; no launch may be running."""
        if self.handle:
            self._c.tuner_ffn_release(self.handle)
            self.handle, self.address = ctypes.c_void_p(), None


def sentence_of(record: AbortRecord) -> str:
    """An abort's record as text."""
    if record.task == -2:
        return (
            f"two launches ran at the same time on one workspace: CTA {record.cta} saw {record.seen} active CTAs, but "
            f"its launch had {record.expected}; use a separate strand for each stream"
        )
    if record.task == -1:
        return f"the start gate saw {record.seen} of the first launch's {record.expected} CTAs start"
    if record.signal < 0:
        return f"CTA {record.cta}, task {record.task} polled an intermediate whose elements never arrived"
    return (
        f"CTA {record.cta}, task {record.task} waited for signal {record.signal}: {record.seen} posts seen, "
        f"{record.expected} expected"
    )
