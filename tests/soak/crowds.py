"""A hostile proxy and many clients of one server: partial heads, partial bodies, lines after a body, nested requests,
silence. Other clients are answered meanwhile, no request causes a server error, and no client gets another's response.

python -m tests.soak.crowds [--size 20000] [--seed 1]
"""

from __future__ import annotations

import random
import socket
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from tests.soak.program import Program, Row, Step, main, total
from tests.support.serving import Server

STEP = 1000
SIZE = 20_000
MOST = 200
#: A text that only bodies contain, never a header.
SECRET = b"from-behind"
#: Seconds within which other requests are answered on a busy machine, far below a request's deadline.
#: `benchmarks.cpu.crowds` has the limit for an idle one.
LIMIT_S = 20.0
MOST_LOG_BYTES = 1_000_000

_HEAD = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
_TRAILERS = b"X-Request-ID: " + SECRET + b"\r\nHost: evil.example\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"


def sent(chance: random.Random) -> tuple[str, bytes]:
    """A kind of misuse, and its bytes."""
    get = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    kinds = {
        "silent": b"",
        "half a head": get[: chance.randrange(1, len(get))],
        "half a body": _HEAD + b"Content-Length: 100\r\n\r\n{",
        "trailers": _CHUNKED + _TRAILERS,
        "two lengths": _HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "length and chunks": _HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "in one another": _HEAD + b"Content-Length: 2\r\n\r\n{}" + get + b"\r\n",
        "noise": chance.randbytes(chance.randrange(1, 2000)),
        "a response that nobody reads": (get.replace(b"/livez", b"/openapi.json") + b"\r\n") * 5,
    }
    name = chance.choice(list(kinds))
    return name, kinds[name]


def work(step: Step) -> list[Row]:
    """Runs one server."""
    chance, counts, faults, longest_s = random.Random(step.seed), Counter[str](), 0, 0.0
    limits = {"TUNER_MAX_CONNECTIONS": str(MOST), "TUNER_REQUEST_DEADLINE_S": "60"}
    with ExitStack() as ends, tempfile.TemporaryDirectory() as name:
        server = ends.enter_context(Server(Path(name) / "data", "--gpu", "none", **limits))
        held = []
        for number in range(step.count):
            client = ends.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            kind, content = sent(chance)
            counts[kind] += 1
            with suppress(OSError):  # the connection may have ended already
                client.sendall(content)
            held.append((kind, client))
            if number % 100 == 99:
                begin_s = time.perf_counter()
                faults += httpx.get(f"{server.url}/livez", timeout=60).status_code != 200
                longest_s = max(longest_s, time.perf_counter() - begin_s)
        faults += sum(_is_fault(client) for kind, client in held if kind != "a response that nobody reads")
        log_bytes = server.log.stat().st_size
    rows: list[Row] = [
        {"kind": kind, "connections": count, "faults": 0, "late": 0, "filled": 0} for kind, count in counts.items()
    ]
    judged = {"faults": faults, "late": int(longest_s > LIMIT_S), "filled": int(log_bytes > MOST_LOG_BYTES)}
    return [*rows, {"kind": "others", "connections": step.count // 100, **judged}]


def _is_fault(client: socket.socket) -> bool:
    """Whether the response is a server error, or a response to the bytes after a body."""
    client.settimeout(0.01)
    with suppress(OSError):
        answer = client.recv(65536)
        return answer.startswith(b"HTTP/1.1 500") or SECRET in answer
    return False


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Rows by kind of misuse; returns what went wrong."""
    summed = total(rows, "kind")
    wrong = [f"{row['faults']} faults" for row in summed if row["faults"]]
    wrong += [f"others waited too long in {row['late']} steps" for row in summed if row["late"]]
    return summed, wrong + [f"the log was flooded in {row['filled']} steps" for row in summed if row["filled"]]


PROGRAM = Program(name="crowds", unit="connections", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
