"""A webhook receiver on the loopback interface with configurable behaviour."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Receiver:
    """Responds to every POST with `status`, after `pause_s`; records what it received."""

    def __init__(self, status: int = 200, port: int = 0, pause_s: float = 0.0) -> None:
        self.status = status
        self.location = ""
        self.pause_s = pause_s
        #: Paths at which it accepts requests without responding.
        self.silent_at: tuple[str, ...] = ()
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Handles one request."""

            def do_POST(self) -> None:
                """Records the request, and responds."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                receiver.closing.wait(60.0 if self.path in receiver.silent_at else receiver.pause_s)
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Suppresses the log."""

        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def url(self, path: str = "/hook") -> str:
        """A URL of the receiver."""
        return f"http://{self.host}{path}"

    def close(self) -> None:
        """Closes it; a second call does nothing."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
