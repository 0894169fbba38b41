"""Runs the example of `deploy/apache` on a free port, with an OpenID Connect provider that accepts any name."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.nginx import certificate
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

_EXAMPLE = ROOT / "deploy/apache/tuner.conf"
MODULES = Path("/usr/lib/apache2/modules")
_LOADED = ("mpm_event", "authn_core", "authz_core", "authz_user", "auth_openidc", "headers", "proxy", "proxy_http",
           "ssl", "socache_shmcb")  # fmt: skip


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def identity_provider(folder: Path) -> Iterator[str]:
    """The address of a provider whose form asks for a name and accepts any."""
    port = free_port()
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    with (folder / "provider.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: process.poll() is not None or _answers(port))
            assert process.poll() is None, (folder / "provider.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/.well-known/openid-configuration").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def example_login(apache: str, folder: Path, site_port: int, service_port: int, provider: str) -> Iterator[Path]:
    """Apache on `site_port`, in front of the service; yields the certificate that its clients must trust."""
    trusted = certificate(folder)
    text = _EXAMPLE.read_text()
    for pattern, value in {
        r"\*:443": f"127.0.0.1:{site_port}",
        r"/etc/ssl/certs/gpu\.example\.com\.pem": str(trusted),
        r"/etc/ssl/private/gpu\.example\.com\.key": f"{folder}/key.pem",
        r"https://id\.example\.com": provider,
        r"https://gpu\.example\.com/oidc": f"https://127.0.0.1:{site_port}/oidc",
        r"127\.0\.0\.1:8000": f"127.0.0.1:{service_port}",
    }.items():
        text, num_replaced = re.subn(pattern, value, text)
        assert num_replaced == 1, pattern
    loaded = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in _LOADED)
    (folder / "apache.conf").write_text(
        f"ServerName 127.0.0.1\nServerRoot {folder}\nPidFile {folder}/pid\nListen 127.0.0.1:{site_port}\n"
        f"ErrorLog {folder}/apache.log\nDefaultRuntimeDir {folder}\n{loaded}\nUser www-data\nGroup www-data\n{text}"
    )
    command = [apache, "-f", f"{folder}/apache.conf", "-DFOREGROUND"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: (folder / "pid").exists() or process.poll() is not None)
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            yield trusted
        finally:
            process.terminate()
            process.wait(30)
