"""A cache in the memory of this process that the epilogue of a qkv product writes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.core.problem.ops.rotary import Rotary

Array = np.ndarray[Any, Any]

#: The content of unwritten elements of a cache; no epilogue produces this value.
UNTOUCHED = 0x5A5A
#: The table entry of pages without tokens of a context; using it writes far outside the cache.
NO_PAGE = 2**31 - 1


class EmulatedCache:
    """Keys and values of some sequences, their lengths and the frequencies; if paged, the page table, in random
    order."""

    def __init__(self, rotary: Rotary, rows: int, *, spare_pages: int = 3, is_packed: bool = False) -> None:
        """Draws lengths from zero to one more than the cache has room for. `spare_pages`: memory after the cache's last
        page. `is_packed`: keys and values of a token are adjacent, and pages have gaps, as in servers."""
        self.rotary, self._rows = rotary, rows
        shape, paged = rotary.cache_shape(rows), rotary.paged(rows)
        sequences = rotary.num_sequences(rows)
        spread = np.linspace(0, rotary.max_length + 1, max(2, sequences)).round().astype(np.int32)
        #: Lengths of the sequences, including new tokens; the longest first.
        self.lengths = spread[::-1][:sequences].copy()
        if sequences == 1:
            self.lengths[0] = rotary.max_length
        #: Pages of each sequence, for a paged cache.
        self.pages = np.full((sequences, paged.pages_of(rotary) if paged else 0), NO_PAGE, np.int32)
        #: Pages of the cache.
        self.num_pages = shape[0] if paged else 0
        if paged:
            free = np.random.default_rng(0).permutation(self.num_pages).astype(np.int32)
            shape = (shape[0] + spare_pages, *shape[1:])
            for of_sequence, length in zip(self.pages, np.minimum(self.lengths, rotary.max_length), strict=True):
                count = -(-int(length) // paged.page_tokens)
                of_sequence[:count], free = free[:count], free[count:]
        self.frequencies = (10_000.0 ** (-np.arange(rotary.head_dim // 2) / (rotary.head_dim // 2))).astype(np.float32)
        lines, head_dim = int(np.prod(shape[1:-1])), rotary.head_dim
        #: Elements between lines, and lines between pages.
        self.line, self.page_lines = (2 * head_dim, lines + 2 * rotary.kv_heads) if is_packed else (head_dim, lines)
        bits = 2 * shape[0] * self.page_lines * self.line
        held = [np.empty(bits + 256, np.uint8) for _ in range(1 if is_packed else 2)]
        memory = [
            one[-one.ctypes.data % 256 :][:bits].view(np.uint16).reshape(shape[0], self.page_lines, self.line)
            for one in held
        ]
        both = [memory[0], memory[0][..., head_dim:]] if is_packed else memory
        self._caches = [one[:, :lines, :head_dim].reshape(shape) for one in both]  # keys, and values
        assert all(np.shares_memory(one, of) for one, of in zip(self._caches, both, strict=True))
        self._behind_pages = [one[:, lines:] for one in memory]

    @property
    def buffers(self) -> dict[str, int]:
        """Their addresses by argument name, and the number of pages if paged."""
        keys, values = (cache.ctypes.data for cache in self._caches)
        has_pages = self.rotary.page_tokens is not None
        found = {"keys": keys, "values": values, "lengths": self.lengths.ctypes.data}
        found |= {"frequencies": self.frequencies.ctypes.data}
        if not has_pages:
            return found
        found |= {"pages": self.pages.ctypes.data, "max_pages": self.pages.shape[1], "num_pages": self.num_pages}
        return found | {"line": self.line, "page_lines": self.page_lines}

    def poison(self) -> None:
        """Resets the cache to its unwritten state."""
        for cache in (*self._caches, *self._behind_pages):
            cache[...] = UNTOUCHED

    def positions(self) -> Array:
        """The position of each row's token in its sequence."""
        tokens = np.arange(self._rows)
        new = self.rotary.new_tokens
        return self.lengths[tokens // new] - new + tokens % new

    def is_kept(self) -> Array:
        """For each row, whether the cache has space for it."""
        at = self.positions()
        has_place = (at >= 0) & (at < self.rotary.max_length)
        if self.rotary.page_tokens is not None:
            page = self._table_at(at, np.arange(self._rows))
            has_place &= (page >= 0) & (page < self.num_pages)
        return has_place

    def new_rows(self, cache: Array) -> tuple[Array, tuple[Any, ...]]:
        """The bits of a cache with heads before tokens, and the positions of the stored rows."""
        rows = np.flatnonzero(self.is_kept())
        at, sequences = self.positions()[rows], rows // self.rotary.new_tokens
        if self.rotary.page_tokens is None:
            return cache, (sequences, slice(None), at)
        place = self._table_at(at, rows), slice(None), at % self.rotary.page_tokens
        return cache if self.rotary.heads_first else cache.swapaxes(1, 2), place

    def _table_at(self, positions: Array, rows: Array) -> Array:
        """The table's pages for the `positions` of `rows`."""
        assert self.rotary.page_tokens is not None
        inside = np.clip(positions, 0, self.rotary.max_length - 1)
        return self.pages[rows // self.rotary.new_tokens, inside // self.rotary.page_tokens]

    def beside(self, queries: Array) -> Array:
        """The bits of each row's queries, keys and values; zeros for rows that are not stored. Checks that nothing else
        was written."""
        found = [queries]
        assert all((gap == UNTOUCHED).all() for gap in self._behind_pages), "written between two pages"
        for cache in self._caches:
            rows = np.zeros((self._rows, self.rotary.kv_heads, self.rotary.head_dim), np.uint16)
            bits, place = self.new_rows(cache)
            rows[self.is_kept()] = bits[place]
            others = bits.copy()
            others[place] = UNTOUCHED
            assert (others == UNTOUCHED).all(), "written outside its new tokens"
            found.append(rows.reshape(self._rows, -1))
        return np.concatenate(found, axis=1)

    def expected(self, sums: Array) -> Array:
        """The expected result of `beside` in float64, from the product's sums, which have the first halves of all heads
        and then the second halves."""
        rotary = self.rotary
        x, y = (half.reshape(self._rows, -1, rotary.head_dim // 2) for half in np.hsplit(sums, 2))
        angles = (self.positions().astype(np.float32)[:, None] * self.frequencies).astype(np.float64)[:, None]
        heads = np.concatenate(
            [x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles)], axis=-1
        )
        values = np.concatenate([x, y], axis=-1)[:, -rotary.kv_heads :]
        heads[:, -rotary.kv_heads :] = values
        heads[~self.is_kept(), rotary.heads :] = 0
        return heads.reshape(self._rows, -1)
