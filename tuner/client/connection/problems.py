"""Turns an error response into an exception."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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


def unsendable(body: Any, error: Exception) -> str:
    """Why a body is no JSON: a number by its path, or the error of the encoder."""
    return ("" if "Circular" in str(error) else _not_finite(body)) or str(error)


def _not_finite(value: Any, path: str = "") -> str:
    """The first number of a body that JSON cannot represent, e.g. ``pair.m: is nan``, with a remedy; empty if there is
    none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path}: is {value}; use a finite number"
    named = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    return next(filter(None, (_not_finite(one, f"{path}.{name}".lstrip(".")) for name, one in named)), "")
