"""How the network is reached: the proxy that the environment sets for an address, and the trusted certificates.

httpx reads these variables itself, but its errors do not name them, and it uses a proxy for loopback.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx

from tuner.client.errors import Misconfigured

#: Schemes of proxies, and whether they need the SOCKS library.
_PROXY_SCHEMES = {"http": False, "https": False, "socks5": True, "socks5h": True}


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """How an address is reached."""

    #: The environment variable that sets it.
    variable: str
    url: str

    def __str__(self) -> str:
        at = httpx.URL(self.url)  # without name and password
        return f"the proxy of {self.variable}, {at.scheme}://{at.netloc.decode().rpartition('@')[2]}"


def ways_to(url: httpx.URL, environment: Mapping[str, str]) -> tuple[Proxy | None, dict[str, Any]]:
    """The proxy, and the options by which `httpx.Client` reaches an address through it; httpx must not read the
    environment itself.

    Raises:
        Misconfigured: a variable of the environment cannot be used; the message names it.
    """
    proxy = proxy_for(url, environment)
    proxy_scheme = None if proxy is None else httpx.URL(proxy.url).scheme
    context = trusted(environment) if "https" in (url.scheme, proxy_scheme) else None
    # An unencrypted proxy needs no certificates.
    found = None if proxy is None else httpx.Proxy(proxy.url, ssl_context=context if proxy_scheme == "https" else None)
    return proxy, {"proxy": found, "verify": context or False}


def remedy_of(error: Exception) -> str:
    """What helps against an unknown authority of certificates; empty for other errors."""
    words = str(error)
    is_unknown = "CERTIFICATE_VERIFY_FAILED" in words and ("self-signed" in words or "issuer" in words)
    return "; name the file with the certificate of its authority in SSL_CERT_FILE" if is_unknown else ""


def checked_url(address: str) -> httpx.URL:
    """Splits an address into its parts.

    Raises:
        ValueError: the port is invalid; httpx accepts any port, and the system takes the remainder modulo 65,536.
    """
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from error
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ValueError(f"port {url.port} is not 1 to 65535")
    return url


def named_proxy(scheme: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy for addresses of a scheme without a more specific setting; raises the same errors as `ways_to`."""
    return ways_to(httpx.URL(f"{scheme}://tuner.example"), environment)[0]


def proxy_for(url: httpx.URL, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that the environment sets for an address; None for loopback and for hosts in NO_PROXY.

    Raises:
        Misconfigured: the variable names no proxy, or one that needs a missing library.
    """
    if is_loopback(url.host) or _is_excepted(url, environment):
        return None
    for name in (f"{url.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if value := environment.get(variable, "").strip():
                return Proxy(variable=variable, url=_checked(variable, value))
    return None


def is_loopback(host: str) -> bool:
    """Whether an address belongs to this machine."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost")


def _is_excepted(url: httpx.URL, environment: Mapping[str, str]) -> bool:
    """Whether NO_PROXY contains the host: its name or a domain of it, an address or a network; with a port or
    without."""
    named = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    return any(_covers(one.strip().lower(), url) for one in named.split(",") if one.strip())


def _covers(excepted: str, url: httpx.URL) -> bool:
    if excepted == "*":
        return True
    host = url.host.lower()
    excepted = excepted.partition("://")[2] or excepted
    try:
        return ip_address(host.strip("[]")) in ip_network(excepted.strip("[]"), strict=False)
    except ValueError:
        pass
    name, colon, port = excepted.rpartition(":")
    if colon and port.isdecimal() and (name.startswith("[") or ":" not in name):
        wanted = url.port or {"http": 80, "https": 443}.get(url.scheme)
        return int(port) == wanted and _covers(name, url)
    domain = excepted.lstrip("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _checked(variable: str, value: str) -> str:
    address = value if "://" in value else f"http://{value}"
    try:
        url = checked_url(address)
    except ValueError as error:
        raise Misconfigured(f"{variable} is not a proxy's address: {error}; use one like http://proxy:3128") from error
    if url.scheme not in _PROXY_SCHEMES or not url.host:
        known = ", ".join(_PROXY_SCHEMES)
        problem = f"is of {url.scheme}://" if url.host else "has no host"
        raise Misconfigured(f"{variable} names a proxy that {problem}; use one of {known}, like http://proxy:3128")
    if _PROXY_SCHEMES[url.scheme] and find_spec("socksio") is None:
        remedy = "install socksio alongside this program, unset it, or add the service to NO_PROXY"
        raise Misconfigured(f"{variable} names a SOCKS proxy, but the library for these is not installed; {remedy}")
    return address


@cache
def _usual(_key_log: str | None) -> ssl.SSLContext:
    """The usual trusted certificates, read once: that takes 30 ms. Python opens the log of keys for each context."""
    return httpx.create_ssl_context(trust_env=False)


def trusted(environment: Mapping[str, str]) -> ssl.SSLContext:
    """The trusted certificates: those of SSL_CERT_FILE or SSL_CERT_DIR, otherwise the usual ones.

    Raises:
        Misconfigured: a variable names a missing file, or one without certificates.
    """
    if log := environment.get("SSLKEYLOGFILE"):
        try:
            Path(log).open("a").close()
        except OSError as error:  # Python opens it for each context
            raise Misconfigured(f"SSLKEYLOGFILE names {log}, which cannot be written: {error.strerror}") from error
    file, folder = environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR")
    if file:
        if not Path(file).is_file():
            raise Misconfigured(
                f"SSL_CERT_FILE names {file}, which is not a file; unset it, or name a file of certificates"
            )
        try:
            return ssl.create_default_context(cafile=file)
        except OSError as error:  # ssl.SSLError, too
            problem = f"SSL_CERT_FILE names {file}, which has no certificates: {error.strerror or error}"
            raise Misconfigured(f"{problem}; unset it, or name a file of certificates in PEM format") from error
    if folder:
        # Several folders, as in OpenSSL.
        if not any(Path(one).is_dir() for one in folder.split(":")):
            problem = f"SSL_CERT_DIR names {folder}, which is not a folder; unset it, or name a folder of certificates"
            raise Misconfigured(problem)
        return ssl.create_default_context(capath=folder)
    return _usual(log)
