"""What a part of an epilogue requires of the kernels of its op, and which of their steps it replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class KernelPart:
    """By default, every engine applies the part to single elements."""

    #: Names of the engines that support it; empty if all do.
    engines: tuple[str, ...] = ()
    #: Whether W must be operand A.
    is_swapped: bool = False
    #: Columns that a CTA's tile must have; 0 if any number.
    tile_columns: int = 0
    #: If W is operand B, a CTA's columns must divide this number or be a multiple of it; 0 if any number.
    column_blocks: int = 0
    #: Maximum fp32 sums per thread, by warpgroups that multiply a task; empty if it needs no additional registers.
    max_sums: Mapping[int, int] = field(default_factory=dict)
    #: The same if W is operand B; empty if it is equal.
    max_unswapped_sums: Mapping[int, int] = field(default_factory=dict)
    #: Whether the warps that share a task exchange numbers in shared memory: for each row of a tile, an fp32 number of
    #: each warp and one more.
    exchanges: bool = False
    #: The struct in ``<part>_wgmma.cuh`` that multiplies tiles instead: `PartProduct` in mainloop_wgmma.cuh.
    multiplies: str = ""
    #: The struct in that file that finishes and stores tiles instead: `PartStore` in epilogue_wgmma.cuh.
    stores: str = ""
    #: The struct in that file that also gets the finished elements of tiles: `PartWatch` in epilogue_wgmma.cuh.
    watches: str = ""

    @property
    def has_device_file(self) -> bool:
        """Whether there is such a file."""
        return bool(self.multiplies or self.needs_tile)

    @property
    def needs_tile(self) -> bool:
        """Whether a CTA must finish whole rows of a tile, with all warps."""
        return bool(self.stores or self.watches)

    @property
    def problem(self) -> str:
        """Why these requirements cannot be met; empty if they can."""
        if self.has_device_file and self.engines != ("wgmma",):
            return f"engines {self.engines}, but its device file is for wgmma: use ('wgmma',)"
        return ""

    def num_exchanged(self, num_warps: int) -> int:
        """Numbers in shared memory for each row of a tile that `num_warps` warps share."""
        return (num_warps + 1) * self.exchanges

    def sums(self, *, swap_ab: bool) -> Mapping[int, int]:
        """Maximum fp32 sums per thread for this order of operands."""
        return self.max_sums if swap_ab else self.max_unswapped_sums or self.max_sums


def max_sums(parts: tuple[KernelPart, ...], groups: int, *, swap_ab: bool) -> int | None:
    """Maximum fp32 sums per thread with these parts, if `groups` warpgroups multiply a task; None if any number."""
    limits = (one.sums(swap_ab=swap_ab) for one in parts)
    return min((limit[groups] for limit in limits if limit), default=None)
