"""The schedule axes of a depthwise convolution, in addition to those of any tile op."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.extend import TileOpSchedule, axis, log2

ROWS_AT_ONCE = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class DepthwiseSchedule(TileOpSchedule, kind="depthwise"):
    """The consecutive rows of a channel that a thread computes, reading each row of H once."""

    rows_at_once: int = axis(
        1,
        values=ROWS_AT_ONCE,
        near=ROWS_AT_ONCE,
        features=log2,
        word="rows{}",
        sentence="A thread computes {} rows of a channel at a time.",
    )
