"""Sends one POST to a webhook: to a checked address, with one deadline for everything, and without redirects."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import httpcore

from tuner.client.connection.network import trusted
from tuner.client.errors import Misconfigured
from tuner.errors import TunerError
from tuner.service.webhooks.policy import WebhookPolicy


class NoAnswer(TunerError):
    """The receiver did not answer; the message has the reason."""


class _Deadline:
    """The deadline of a whole attempt. With limits per read, a slow answer could continue forever."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        """The seconds that are left; raises `httpcore.ReadTimeout` if there are none."""
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout("it took too long")
        return left_s


class _Stream(httpcore.NetworkStream):
    """A connection in which every step ends at the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Same as in the base class."""
        return self._stream.read(max_bytes, self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Same as in the base class."""
        self._stream.write(buffer, self._deadline.left_s())

    def close(self) -> None:
        """Same as in the base class."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Same as in the base class."""
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._deadline.left_s()), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Same as in the base class."""
        return self._stream.get_extra_info(info)


class _Network(httpcore.NetworkBackend):
    """Connects only to the checked addresses, since a second look-up of the name may return a different one."""

    def __init__(self, policy: WebhookPolicy, deadline: _Deadline) -> None:
        self._policy = policy
        self._deadline = deadline
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Same as in the base class, but uses the first address that responds."""
        refusal: Exception | None = None
        for address in self._policy.addresses(host, port):
            try:
                stream = self._backend.connect_tcp(address, port, self._deadline.left_s())
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                refusal = error
            else:
                return _Stream(stream, self._deadline)
        raise refusal or httpcore.ConnectError(f"{host} leads nowhere")


@cache
def _authorities() -> ssl.SSLContext:
    """The trusted certificates: the system's, or those of SSL_CERT_FILE. Reading them is slow.

    Raises:
        Misconfigured: the variable's file has no certificates.
    """
    is_named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return trusted(os.environ) if is_named else ssl.create_default_context()


def post(url: str, headers: Mapping[str, str], body: bytes, policy: WebhookPolicy, timeout_s: float) -> int:
    """The status of the answer, whose body is not read. Redirects are treated like any other answer.

    Raises:
        NotAllowed: the host's name resolves to an address that is not allowed.
        NoAnswer: the message has the reason.
    """
    try:
        context = _authorities() if url.startswith("https:") else None
    except Misconfigured as error:
        raise NoAnswer(str(error)) from error
    network = _Network(policy, _Deadline(timeout_s))
    try:
        with (
            httpcore.ConnectionPool(ssl_context=context, network_backend=network) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
        ):
            return response.status
    except httpcore.TimeoutException as error:
        raise NoAnswer(f"no answer in {timeout_s:g} s") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise NoAnswer(f"no answer: {error or type(error).__name__}") from error
