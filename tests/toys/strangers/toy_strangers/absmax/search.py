"""How a search begins."""

from __future__ import annotations

from toy_strangers.common import search_of

SEARCH = search_of("threads")
