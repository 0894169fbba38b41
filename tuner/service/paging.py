"""The limit for a page of a listing."""

from __future__ import annotations

from tuner.errors import InvalidInput

#: Rows of the largest page.
MAX_PAGE = 500


def check_limit(limit: int) -> None:
    """Refuses a page that is empty or too long.

    Raises:
        InvalidInput: it is one of these.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(
            "limit", f"must be 1 to {MAX_PAGE}, got {limit}", "use a smaller limit, and follow next_cursor"
        )
