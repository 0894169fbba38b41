"""Limits the length of a page of a listing."""

from __future__ import annotations

from tuner.errors import InvalidInput

#: Number of rows on the largest page.
MAX_PAGE = 500


def check_limit(limit: int) -> None:
    """Refuses a limit that would make a page empty or too long.

    Raises:
        InvalidInput: `limit` is out of range.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(
            "limit", f"must be 1 to {MAX_PAGE}, got {limit}", "use a smaller limit, and follow next_cursor"
        )
