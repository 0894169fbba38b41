"""What is chosen of a depthwise convolution, beside what is chosen of any tile op."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.extend import TileOpSchedule, axis, log2

ROWS_AT_ONCE = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class DepthwiseSchedule(TileOpSchedule, kind="depthwise"):
    """Rows of a channel that a thread makes one behind the other, of which it reads each of H once."""

    rows_at_once: int = axis(
        1,
        values=ROWS_AT_ONCE,
        near=ROWS_AT_ONCE,
        features=log2,
        word="rows{}",
        sentence="A thread makes {} rows of a channel at once.",
    )
