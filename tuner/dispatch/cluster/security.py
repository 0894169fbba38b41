"""Who may be in a cluster: everyone with a certificate of its authority. Mutual TLS is the trust boundary."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from distributed.security import Security

from tuner.errors import InvalidInput

#: The files in a member's folder: the authority's certificate, its own, and its key.
CA_FILE, CERT_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
_REMEDY = "create it with `tuner tls create`"


def security_for(address: str, tls: Path | None, *, insecure: bool = False) -> Security:
    """How to connect to `address`; for `tls` see `tuner tls create`.

    Raises:
        InvalidInput: the address is invalid; the required certificates are missing or invalid; or the address is
            unencrypted and reachable from other machines, which `insecure` does not allow.
    """
    scheme, host = check_address(address)
    if scheme == "tls":
        if tls is None:
            raise InvalidInput("tls", f"{address} needs certificates", "pass the folder that `tuner tls create` made")
        missing = [name for name in (CA_FILE, CERT_FILE, KEY_FILE) if not (tls / name).is_file()]
        if missing:
            raise InvalidInput("tls", f"{tls} lacks {', '.join(missing)}", _REMEDY)
        _check_certificates(tls)
        cert, key = str(tls / CERT_FILE), str(tls / KEY_FILE)
        ours = {f"tls_{role}_{what}": path for role in ("scheduler", "worker", "client")
                for what, path in (("cert", cert), ("key", key))}  # fmt: skip
        return Security(tls_ca_file=str(tls / CA_FILE), require_encryption=True, **ours)
    if not insecure and not _is_loopback(host):
        raise InvalidInput(
            "scheduler",
            f"{address} is reachable from other machines, and anyone who can reach it can run code on the workers",
            "use tls:// and --tls, or accept the risk with --insecure",
        )
    return Security(require_encryption=False)


def _check_certificates(tls: Path) -> None:
    """Checks that the files of a member contain what their names say, and that the key belongs to the certificate.

    Raises:
        InvalidInput: names the file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name in (CA_FILE, CERT_FILE):
        with _naming(tls / name, "is not a certificate in PEM format"):
            context.load_verify_locations(tls / name)
    with _naming(tls / KEY_FILE, "is not a private key in PEM format without a password"):
        # An empty password, since OpenSSL would otherwise ask for one at the terminal.
        context.load_cert_chain(tls / CERT_FILE, tls / KEY_FILE, password="")


@contextmanager
def _naming(path: Path, problem: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"is not the key that belongs to {CERT_FILE}"
        raise InvalidInput("tls", f"{path} {problem}", _REMEDY) from error
    except OSError as error:
        raise InvalidInput(
            "tls", (f"{path} cannot be read: {error.strerror}"), "make it readable for this user"
        ) from error


def check_address(address: str) -> tuple[str, str]:
    """Scheme and host of ``tls://host:port`` or ``tcp://host:port``.

    Raises:
        InvalidInput: `address` has neither form.
    """
    remedy = "use tls://HOST:PORT"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput("scheduler", f"{address!r} is not an address: {error}", remedy) from error
    if parts.scheme not in ("tls", "tcp") or not host or port is None:
        raise InvalidInput("scheduler", f"{address!r} is not the address of a scheduler", remedy)
    return parts.scheme, host


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
