"""A proxy for a service that replaces the responses to some requests with those to others."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Maps method and path, and the body that the service returned, to what the client receives.
Rewrite = Callable[[str, str, Any], Any]


@contextmanager
def hostile_proxy(url: str, rewrite: Rewrite) -> Iterator[str]:
    """The address of a proxy that rewrites JSON responses; all other bytes, and their signatures, are passed on."""

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            body = self.rfile.read(length) or None
            asked = urllib.request.Request(f"{url}{self.path}", data=body, method=self.command, headers=headers)
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    status, content, kept = answer.status, answer.read(), answer.headers
            except urllib.error.HTTPError as error:
                status, content, kept = error.code, error.read(), error.headers
            if "json" in (kept.get("Content-Type") or "") and status < 300:
                content = json.dumps(rewrite(self.command, self.path, json.loads(content))).encode()
            self.send_response(status)
            for name, value in kept.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _pass  # noqa: N815  # as http.server calls them

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
