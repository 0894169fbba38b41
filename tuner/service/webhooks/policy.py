"""Where webhooks may go: to configured hosts, with https, and not to host names that resolve to private addresses."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from tuner.errors import InvalidInput, TunerError

Address = IPv4Address | IPv6Address
_DEFAULT_PORTS = {"https": 443, "http": 80}
#: IPv6 prefixes of addresses that embed an IPv4 address, for networks that translate between the two: RFC 6052.
_NAT64 = IPv6Network("64:ff9b::/96")


class NotAllowed(TunerError):
    """The configuration does not allow a webhook's address."""


@dataclass(frozen=True, kw_only=True)
class WebhookPolicy:
    """The allowed hosts, and the secret by which a receiver recognises this service."""

    #: `name` or `name:port`, in lower case; without a port, the default of the scheme.
    hosts: frozenset[str] = frozenset()
    #: Private networks that a host name may nevertheless resolve to.
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    #: Secret of the signatures.
    secret: str = ""

    def check(self, url: str) -> None:
        """Refuses an address that is not allowed.

        Raises:
            InvalidInput: the message has the reason, and what is allowed.
        """
        if not self.hosts:
            raise InvalidInput(
                "webhook",
                "is set, but this server sends no webhooks",
                ("leave it out, or ask for TUNER_WEBHOOK_HOSTS to be set"),
            )
        try:
            self._check(_split(url))
        except NotAllowed as error:
            allowed = ", ".join(sorted(self.hosts))
            raise InvalidInput("webhook", str(error), f"use https:// and one of the hosts {allowed}") from error

    def _check(self, parts: SplitResult) -> None:
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        shown = f"[{host}]" if ":" in host else host
        known = {f"{shown}:{port}"} | ({shown} if port == _DEFAULT_PORTS[parts.scheme] else set())
        if not known & self.hosts:
            raise NotAllowed(f"the host {shown}:{port} is not allowed")
        if parts.scheme == "http" and not _names_loopback(host):
            raise NotAllowed("http:// is allowed only for this machine")

    def addresses(self, host: str, port: int) -> list[str]:
        """The current addresses of a host's name, all of them allowed.

        Raises:
            NotAllowed: one of the addresses is not allowed.
            OSError: the name does not resolve.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            self._check_address(host, ip_address(address.partition("%")[0]))
        return addresses

    def _check_address(self, host: str, address: Address) -> None:
        inner = _inner(address)
        if any(inner in network or address in network for network in self.networks):
            return
        if _names_loopback(host):
            if not inner.is_loopback:
                raise NotAllowed(f"{host} resolves to {address}, which is not this machine")
            return
        if not inner.is_global or inner.is_multicast or inner.is_reserved:
            raise NotAllowed(f"{host} resolves to {address}, which is private; TUNER_WEBHOOK_NETWORKS can allow it")


def _split(url: str) -> SplitResult:
    """The parts of a URL; raises `NotAllowed` if it is not a plain web address."""
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise NotAllowed("it has characters that are not allowed in an address")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise NotAllowed(f"it is not an address: {error}") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise NotAllowed("it is not an https:// address")
    if parts.username is not None or parts.fragment or parts.port == 0:
        raise NotAllowed("it contains a user, a fragment or port 0")
    return parts


def _names_loopback(host: str) -> bool:
    """Whether a host name means this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _inner(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, if there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
