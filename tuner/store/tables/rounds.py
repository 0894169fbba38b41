"""Raw samples as bytes, and back: a four-byte marker, then 24 bytes per round."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from tuner.core.trial.samples import DropReason, Round

#: Its four bytes make the length not a multiple of eight, unlike the first format, which had only float64 times.
_MARK = b"rnd2"
#: Times of candidate and library, microseconds (0 without a library); their clocks, MHz; reason; padding.
_ROUND = struct.Struct("<ddHHB3x")
#: The position of a reason is its code; new ones are appended.
_REASONS = (None, DropReason.SLOW_CLOCK, DropReason.OFF_CLOCK, DropReason.SLOWDOWN, DropReason.PREVIEW)


def pack_rounds(rounds: Sequence[Round]) -> bytes:
    """Inverse of `unpack_rounds`."""
    return _MARK + b"".join(
        _ROUND.pack(
            one.time_us, one.library_us or 0.0, one.clock_mhz, one.library_clock_mhz, _REASONS.index(one.dropped)
        )
        for one in rounds
    )


@lru_cache(maxsize=1024)  # cached, since pages show the same trials repeatedly
def unpack_rounds(packed: bytes | None) -> tuple[Round, ...]:
    """The rounds; empty if they were removed from the disk. The first format has only the candidate's times."""
    if not packed:
        return ()
    if len(packed) % 8 == 0:
        return tuple(Round(time_us=time_us) for (time_us,) in struct.iter_unpack("<d", packed))
    return tuple(
        Round(
            time_us=time_us,
            library_us=library_us or None,
            clock_mhz=clock_mhz,
            library_clock_mhz=library_clock_mhz,
            dropped=_REASONS[code],
        )
        for time_us, library_us, clock_mhz, library_clock_mhz, code in _ROUND.iter_unpack(packed[len(_MARK) :])
    )
