"""Runs the example of `deploy/nginx` unprivileged, on a free port, with its own certificate."""

from __future__ import annotations

import datetime
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.repository import ROOT
from tests.support.waiting import wait_until

_EXAMPLE = ROOT / "deploy/nginx/tuner.conf"
_MAIN = """daemon off;
pid {folder}/pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    {temporary}
    include {folder}/tuner.conf;
}}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def certificate(folder: Path) -> Path:
    """A self-signed certificate for loopback; its key is in the same folder."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(*form))
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem"


@contextmanager
def example_proxy(nginx: str, folder: Path, service_port: int) -> Iterator[tuple[str, Path]]:
    """The address of the site, and the certificate that its clients must trust."""
    trusted = certificate(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = _EXAMPLE.read_text()
    for pattern, value in {
        r"listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        r"(?m)^(    ssl_certificate) .*$": rf"\1 {trusted};",
        r"(?m)^(    ssl_certificate_key) .*$": rf"\1 {folder}/key.pem;",
        r"127\.0\.0\.1:8000": f"127.0.0.1:{service_port}",
    }.items():
        text, num_replaced = re.subn(pattern, value, text)
        assert num_replaced == 1, pattern
    (folder / "tuner.conf").write_text(text)
    temporary = "\n    ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder, temporary=temporary))
    with (
        (folder / "nginx.log").open("w") as log,
        subprocess.Popen([nginx, "-p", str(folder), "-c", f"{folder}/nginx.conf"], stderr=log) as process,
    ):
        try:
            wait_until(lambda: (folder / "pid").exists() or process.poll() is not None)
            assert process.poll() is None, (folder / "nginx.log").read_text()
            yield f"https://127.0.0.1:{port}", trusted
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
