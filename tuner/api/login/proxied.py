"""Login through a proxy, which names the user in a header. Only listed proxies are trusted."""

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

#: The key under which the scope holds the connection's address, which no forwarding header changes.
PEER = "tuner.peer"


class BadLogin(Exception):
    """A listed proxy sent an invalid user name."""


@dataclass(frozen=True, kw_only=True)
class ProxyLogin:
    """The trusted proxies, and the roles of their users."""

    #: The header that names the user, in lower case.
    header: str
    #: The addresses of trusted proxies.
    peers: tuple[IPv4Network | IPv6Network, ...]
    #: The role of users.
    role: Role
    #: Users who are admins.
    admins: frozenset[str]

    def caller(self, connection: HTTPConnection, address: str) -> Caller | None:
        """The user named by a listed proxy; None if none is named.

        Raises:
            BadLogin: the header has several names, or an invalid one.
        """
        name = self.header.encode()
        said = [value for key, value in connection.scope["headers"] if key == name]
        if not said or not self._is_listed(connection.scope.get(PEER, "")):
            return None
        try:
            owner = said[0].decode().strip()
        except UnicodeDecodeError:
            owner = ""
        # A proxy may join two header lines with a comma (RFC 9110, 5.3).
        if len(said) > 1 or "," in owner or not is_name(owner):
            words = "it must be a single name of 1 to 64 printable characters without a comma"
            raise BadLogin(f"the proxy's {self.header} is not a user name: {words}")
        return Caller(owner=owner, role=Role.ADMIN if owner in self.admins else self.role, token_id="", address=address)

    def _is_listed(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.peers)


def session_of_proxy(caller: Caller, key: bytes) -> Session:
    """The user's session, which proves that a form comes from one of its pages: browsers send the login with other
    sites' forms, too."""
    proof = hmac.new(key, b"tuner.proxied:" + caller.owner.encode(), hashlib.sha256).hexdigest()
    return Session(token_id="", csrf=proof)


class NotePeer:
    """ASGI middleware that stores the connection's address. It wraps the middleware that applies forwarding headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application."""
        client = scope.get("client")
        await self._app({**scope, PEER: client[0] if client else ""}, receive, send)
