"""Turns an error response into an exception."""

from __future__ import annotations

import httpx

from tuner.client.connection.addresses import command_at
from tuner.client.errors import ClientError, NoResult, NoToken, Refused, Unreachable


def error_of(response: httpx.Response, url: str) -> ClientError:
    """The exception for a problem document of the service at `url`."""
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{response.url} answered {response.status_code} {response.reason_phrase}"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return NoToken(f"{detail} ({command_at(url, 'login')}, or TUNER_TOKEN)")
    if response.status_code == httpx.codes.NOT_FOUND:
        return NoResult(detail)
    return Unreachable(detail) if response.is_server_error else Refused(detail)
