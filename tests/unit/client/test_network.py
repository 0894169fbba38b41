"""Proxies and certificates set in the environment are used, or refused with the variable's name."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import httpx
import pytest

from tests.support.nginx import certificate
from tuner.client import Client
from tuner.client.connection.network import is_loopback, proxy_for, remedy_of, trusted
from tuner.client.errors import Misconfigured, Unreachable

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def proxy(url: str, **environment: str) -> str | None:
    found = proxy_for(httpx.URL(url), environment)
    return None if found is None else f"{found.variable} {found.url}"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_loopback_is_asked_by_no_proxy(host: str) -> None:
    everything = {"http_proxy": "http://p:1", "HTTPS_PROXY": "http://p:1", "ALL_PROXY": "socks5://p:1"}
    for scheme in ("http", "https"):
        assert proxy(f"{scheme}://{host}:8000", **everything) is None


def test_a_proxy_is_taken_by_the_addresses_scheme_and_named() -> None:
    assert proxy("http://gpu:8000", HTTP_PROXY="p:3128") == "HTTP_PROXY http://p:3128"
    assert proxy("https://gpu", HTTP_PROXY="p:3128") is None
    assert proxy("https://gpu", ALL_PROXY="https://p") == "ALL_PROXY https://p"
    assert proxy("http://gpu", http_proxy="http://a", HTTP_PROXY="http://b") == "http_proxy http://a"
    assert proxy("http://gpu", HTTP_PROXY="") is None
    with_password = proxy_for(httpx.URL("http://gpu"), {"HTTP_PROXY": "http://me:secret@p:1"})
    assert str(with_password) == "the proxy of HTTP_PROXY, http://p:1"


@pytest.mark.parametrize(
    ("excepted", "url", "is_direct"),
    [
        ("::1,fd00::/8", "http://[fd00::7]:8000", True),
        ("[fd00::7]", "http://[fd00::7]:8000", True),
        ("[fd00::7]:8000", "http://[fd00::7]:8000", True),
        ("[fd00::7]:80", "http://[fd00::7]:8000", False),
        ("fd00::7", "http://gpu:8000", False),
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.1.2.3", "http://10.1.2.30", False),
        ("example.com", "http://gpu.example.com", True),
        (".example.com", "http://gpu.example.com", True),
        ("*.example.com", "http://gpu.example.com", True),
        ("example.com", "http://badexample.com", False),
        ("gpu:8000", "http://gpu:8000", True),
        ("gpu:8000", "http://gpu:9000", False),
        ("gpu:443", "https://gpu", True),
        ("a, *", "http://gpu", True),
        ("", "http://gpu", False),
        ("://,[,]:x,:", "http://gpu", False),
    ],
)
def test_what_no_proxy_names_is_asked_directly(excepted: str, url: str, is_direct: bool) -> None:
    assert (proxy(url, NO_PROXY=excepted, ALL_PROXY="http://p:1") is None) == is_direct


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("socks5://p:1080", "ALL_PROXY names a SOCKS proxy"),
        ("socks5h://p:1080", "ALL_PROXY names a SOCKS proxy"),
        ("ftp://p", "is of ftp://"),
        ("http://", "has no host"),
        ("http://p:port", "ALL_PROXY is not a proxy's"),
        ("http://p:99999", "ALL_PROXY is not a proxy's address: port 99999"),
        ("http://p:0", "ALL_PROXY is not a proxy's address: port 0"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.connection.network.find_spec", lambda _: None)
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(Misconfigured, match=words):
        Client("http://gpu:8000")
    Client("http://127.0.0.1:8000")


@pytest.mark.parametrize("value", ["http://p:3128", "p:3128", "https://p:3128", "http://user:pass word@p:1"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_each_kind_of_service_is_asked_through_each_kind_of_proxy(
    scheme: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", value)
    Client(f"{scheme}://gpu.invalid")


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_a_port_that_is_none_makes_no_address(port: int) -> None:
    with pytest.raises(Unreachable, match=f"is not an address: port {port} is not 1 to 65535"):
        Client(f"http://127.0.0.1:{port}")


def test_a_client_says_through_which_proxy_it_got_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Client("http://gpu.invalid:8000") as client, pytest.raises(Unreachable, match="the proxy of HTTP_PROXY"):
        client.job("job-1")


def test_an_unknown_authority_has_the_remedy_with_it(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path), tmp_path / "key.pem")

    def shake_hands(listening: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), context.wrap_socket(listening.accept()[0], server_side=True):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=shake_hands, args=[listening])
        server.start()
        address = f"https://127.0.0.1:{listening.getsockname()[1]}"
        with Client(address) as client, pytest.raises(Unreachable, match="of its authority in SSL_CERT_FILE"):
            client.job("job-1")
        server.join(60)
    assert remedy_of(OSError("Connection refused")) == ""


def test_certificates_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name, path, words in (
        ("SSL_CERT_FILE", tmp_path / "none.pem", "which is not a file"),
        ("SSL_CERT_FILE", tmp_path, "which is not a file"),
        ("SSL_CERT_FILE", tmp_path / "empty.pem", "which has no certificates"),
        ("SSL_CERT_DIR", tmp_path / "none", "which is not a folder"),
        ("SSLKEYLOGFILE", tmp_path / "none" / "keys", "which cannot be written"),
    ):
        with pytest.raises(Misconfigured, match=f"{name} names .*{words}"):
            trusted({name: str(path)})
        monkeypatch.setenv(name, str(path))
        with pytest.raises(Misconfigured, match=name):
            Client("https://gpu")
        Client("http://gpu")
        monkeypatch.delenv(name)


def test_a_name_is_no_loopback() -> None:
    assert not any(map(is_loopback, ("gpu", "localhost.example.com", "10.0.0.1", "::2", "")))
