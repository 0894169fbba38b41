"""Signed messages: who sent a body, and when, in a header.

Source: HMAC-SHA256, RFC 2104. The time is signed too, so that an old message cannot be replayed as a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import re

#: Headers of a webhook: its signature, and the delivery's name, which stays the same when it is retried.
SIGNATURE_HEADER = "Tuner-Signature"
DELIVERY_HEADER = "Tuner-Delivery"
#: Maximum difference between a message's time and the receiver's clock, seconds.
DEFAULT_TOLERANCE_S = 300.0

_FORM = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def sign(secret: str, body: bytes, now: float) -> str:
    """The header's value for `body`, sent at `now`, seconds since the epoch."""
    return f"t={int(now)},v1={_mac(secret, int(now), body)}"


def is_signed(secret: str, body: bytes, header: str, now: float, tolerance_s: float = DEFAULT_TOLERANCE_S) -> bool:
    """Whether `body` was sent by someone who knows `secret`, and at most `tolerance_s` ago."""
    found = _FORM.fullmatch(header)
    if found is None or abs(now - int(found[1])) > tolerance_s:
        return False
    return hmac.compare_digest(found[2], _mac(secret, int(found[1]), body))


def _mac(secret: str, at: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
