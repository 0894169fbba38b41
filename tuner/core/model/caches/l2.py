"""The content of the L2, panel by panel: a panel is the part of an operand that one row or column of tiles reads, or a
piece of it.

The least recently used panel is evicted first, by class: panels requested as `FIRST` are evicted before all others,
those requested as `LAST` after all others.
"""

from __future__ import annotations

from collections import OrderedDict

#: Eviction classes, as requested by copies of operands.
FIRST, NORMAL, LAST = range(3)


class L2:
    """A cache of `capacity_bytes`; bytes of written panels go to DRAM when they are evicted."""

    def __init__(self, capacity_bytes: int) -> None:
        self._free = capacity_bytes
        self._classes: tuple[OrderedDict[int, int], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        #: Panel -> its eviction class.
        self._home: dict[int, OrderedDict[int, int]] = {}
        #: Panel -> its bytes that differ from DRAM's.
        self._dirty: dict[int, int] = {}
        #: Bytes written to DRAM by evictions.
        self.evicted_bytes = 0

    def held(self, panel: int) -> int:
        """Bytes of a panel that are in the cache."""
        home = self._home.get(panel)
        return home[panel] if home is not None else 0

    def touch(self, panel: int, size_bytes: int, hint: int = NORMAL) -> int:
        """Reads a panel of `size_bytes`, or more of one that arrives gradually; returns the missing bytes."""
        home, target = self._home.get(panel), self._classes[hint]
        held = home.pop(panel) if home is not None else 0
        missed = size_bytes - held if size_bytes > held else 0
        target[panel] = held + missed
        if home is not target:
            self._home[panel] = target
        if missed:
            self._free -= missed
            if self._free < 0:
                self._evict()
        return missed

    def write(self, panel: int, num_bytes: int, size_bytes: int, hint: int = NORMAL) -> None:
        """Writes `num_bytes` of a panel of `size_bytes`; they are added to its cached bytes."""
        self._dirty[panel] = min(size_bytes, self._dirty.get(panel, 0) + num_bytes)
        self.touch(panel, min(size_bytes, self.held(panel) + num_bytes), hint)

    def _evict(self) -> None:
        for held in self._classes:
            while self._free < 0 and held:  # a panel larger than the cache evicts itself
                panel, size_bytes = held.popitem(last=False)
                del self._home[panel]
                self._free += size_bytes
                self.evicted_bytes += self._dirty.pop(panel, 0)
