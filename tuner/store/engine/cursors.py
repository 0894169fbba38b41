"""Cursors: opaque to clients, and valid only for the listing that returned them."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from tuner.errors import InvalidInput


def encode_cursor(listing: str, position: list[Any]) -> str:
    """A cursor for the rows after `position` in `listing`, e.g. ``trials of job-… by time``."""
    text = json.dumps([listing, position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, shape: tuple[type, ...]) -> list[Any]:
    """Inverse of `encode_cursor`; `shape` has the types of the position's members.

    Raises:
        InvalidInput: `cursor` is not a cursor, or belongs to another listing.
    """
    try:
        owner, position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidInput(
            "cursor", "is not a cursor of this service", ("pass next_cursor exactly as it was sent")
        ) from None
    if owner != listing:
        raise InvalidInput("cursor", "belongs to another listing", "use it with the same job, filters and order")
    if not isinstance(position, list) or [type(value) for value in position] != list(shape) or not _fits(position):
        raise InvalidInput("cursor", "is not a cursor of this service", "pass next_cursor exactly as it was sent")
    return position


def _fits(position: list[Any]) -> bool:
    """Whether a database can compare its values with the numbers in `position`."""
    return all(abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value) for value in position)
