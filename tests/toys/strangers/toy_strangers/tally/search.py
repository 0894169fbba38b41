"""First guesses of a search."""

from __future__ import annotations

from toy_strangers.common import search_of

SEARCH = search_of("threads")
