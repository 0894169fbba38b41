"""The schedule of a pair of convolutions in one launch."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.schedule.axis import axis, log2, whole_step
from tuner.core.schedule.levels import LaunchOpSchedule

#: Rows or columns of a tile of the output.
SIDES = (2, 4, 7, 8, 14, 16)


@dataclass(frozen=True, kw_only=True)
class ConvPairSchedule(LaunchOpSchedule, kind="conv_pair"):
    """The tile of the output for which a CTA computes, with its halo, the images between both convolutions."""

    #: Rows of a tile, pixels.
    rows: int = axis(8, values=SIDES, features=log2)
    #: Columns of a tile, pixels.
    columns: int = axis(8, values=SIDES, features=log2)
    #: Warpgroups of a CTA.
    warpgroups: int = axis(1, values=(1, 2), features=log2)
    #: Whether they share each tile; otherwise each has its own.
    together: bool = axis(False, values=(False, True), features=whole_step)

    @property
    def team(self) -> int:
        """Warpgroups of a tile."""
        return self.warpgroups if self.together else 1

    @property
    def num_teams(self) -> int:
        """Tiles that a CTA computes at a time."""
        return self.warpgroups // self.team

    def __str__(self) -> str:
        groups = "1 warpgroup" if self.warpgroups == 1 else f"{self.warpgroups} warpgroups"
        return f"conv pair {self.rows}x{self.columns} {groups}{' together' if self.together else ''}"
