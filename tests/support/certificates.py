"""One SSL context for all HTTP clients of a test process: each would read the trusted certificates again, for 30 ms."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any

import httpx
from httpx._transports import default

_created = httpx.create_ssl_context
#: Variables that change what a context trusts or writes.
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def share() -> None:
    """Lets all clients share a context that nothing sets apart."""
    vars(default)["create_ssl_context"] = _context


def _context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is True and cert is None:
        return _usual(trust_env, *map(os.environ.get, _VARIABLES))
    return _created(verify=verify, cert=cert, trust_env=trust_env)


@cache
def _usual(trust_env: bool, *_variables: str | None) -> ssl.SSLContext:
    return _created(trust_env=trust_env)
