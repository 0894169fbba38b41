"""A login through a proxy: its header names the user. Only listed peers are trusted."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.http.session import Session
from tuner.core.access.caller import Caller, Role
from tuner.core.access.names import is_name

#: Where a request's scope has the address of its connection, whatever a proxy reports about its clients.
PEER = "tuner.peer"


class BadLogin(Exception):
    """A listed proxy sends an invalid user."""


@dataclass(frozen=True, kw_only=True)
class ProxyLogin:
    """Which proxies are trusted, and the roles of their users."""

    #: The header that names the user, in lower case.
    header: str
    #: The addresses from which it is trusted.
    peers: tuple[IPv4Network | IPv6Network, ...]
    #: What users may do.
    role: Role
    #: Users who are admins.
    admins: frozenset[str]

    def caller(self, connection: HTTPConnection, address: str) -> Caller | None:
        """The user that a listed proxy names; None if there is none.

        Raises:
            BadLogin: it names several, or an invalid name.
        """
        name = self.header.encode()
        said = [value for key, value in connection.scope["headers"] if key == name]
        if not said or not self._is_listed(connection.scope.get(PEER, "")):
            return None
        try:
            owner = said[0].decode().strip()
        except UnicodeDecodeError:
            owner = ""
        # A proxy may send two lines of a header as one with a comma between them (RFC 9110, 5.3).
        if len(said) > 1 or "," in owner or not is_name(owner):
            words = "it must be one name of 1 to 64 printable characters without a comma"
            raise BadLogin(f"the proxy's {self.header} names no user: {words}")
        return Caller(owner=owner, role=Role.ADMIN if owner in self.admins else self.role, token_id="", address=address)

    def _is_listed(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.peers)


def session_of_proxy(caller: Caller, key: bytes) -> Session:
    """The proof that a form comes from a page of this user: the browser also sends the user's login with other sites'
    forms."""
    proof = hmac.new(key, b"tuner.proxied:" + caller.owner.encode(), hashlib.sha256).hexdigest()
    return Session(token_id="", csrf=proof)


class NotePeer:
    """ASGI middleware, outside the one that trusts a proxy's report about its clients: stores the address of the
    connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application."""
        client = scope.get("client")
        await self._app({**scope, PEER: client[0] if client else ""}, receive, send)
