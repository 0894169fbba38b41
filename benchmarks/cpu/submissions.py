"""Times of `POST /jobs` at 200 requests per second: a real server with tokens, over HTTP.

python -m benchmarks.cpu.submissions [--seconds 30] [--out benchmarks/results/cpu/service.json]

16 clients send 12.5 requests per second each, of distinct problems, each over its own connection. A request's time is
measured from when it is due, so it includes waiting for the previous one. The server simulates a card that takes half a
second for a trial, and works on the jobs meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, check_row, merge_report
from benchmarks.cpu.best import RESULTS, cpu_s, percentile, serving

NUM_CLIENTS = 16
PER_S = 12.5
BAR_S = 0.075
#: Seconds of a trial of the simulated card.
LATENCY_S = "0.5"


def make_token(directory: Path) -> str:
    """Creates a token that may submit; from then on, requests need a token."""
    command = [sys.executable, "-m", "tuner.cli", "token", "create", "--data", str(directory)]
    made = subprocess.run([*command, "--role", "submit", "--owner", "load"], capture_output=True, text=True, check=True)
    return next(word for word in made.stdout.split() if word.startswith("tuner_"))


def body(number: int) -> bytes:
    """A distinct problem for each number."""
    pair = {
        "kind": "ffn",
        "m": 1 + number % 4096,
        "d_in": 1024 + 128 * (number // 4096),
        "d_hidden": 4096,
        "d_out": 1024,
    }
    return json.dumps({"pair": pair, "budget": {"trials": 60, "seconds": 600}}).encode()


def submit_all(url: str, token: str, seconds: float) -> tuple[list[tuple[float, str]], float]:
    """(Seconds from the due time to the answer, the job's id) of each request of all clients; and the total time."""

    async def run() -> tuple[list[tuple[float, str]], float]:
        begin_s = time.perf_counter() + 1.0
        parts = await asyncio.gather(*(_submit(url, token, client, begin_s, seconds) for client in range(NUM_CLIENTS)))
        return [answer for part in parts for answer in part], time.perf_counter() - begin_s

    return asyncio.run(run())


async def _submit(url: str, token: str, client: int, begin_s: float, seconds: float) -> list[tuple[float, str]]:
    """One client with one connection. It implements HTTP itself, since a library would use more CPU time."""
    address = urlsplit(url)
    head = f"POST /jobs HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    answers = []
    for turn in range(round(seconds * PER_S)):
        content = body(turn * NUM_CLIENTS + client)
        request = f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        due_s = begin_s + (turn + client / NUM_CLIENTS) / PER_S
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        writer.write(request)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].partition(b"\r")[0])
        content = await reader.readexactly(length)
        if b" 202 " not in answer.partition(b"\r")[0]:
            raise SystemExit(f"a job was answered with {answer[:12]!r}: {content[:300]!r}")
        answers.append((time.perf_counter() - due_s, json.loads(content)["id"]))
    writer.close()
    return answers


def measure(seconds: float) -> list[dict[str, Any]]:
    """The rows: the times, and the number of accepted jobs that are not in the database."""
    os.environ["TUNER_SIMULATED_LATENCY_S"] = LATENCY_S
    os.environ["TUNER_REQUESTS_PER_S"] = "1000"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        token = make_token(data)
        with serving(data) as (url, pid):
            before_s, own_s = cpu_s(pid), time.process_time()
            answers, whole_s = submit_all(url, token, seconds)
            server_s, own_s = cpu_s(pid) - before_s, time.process_time() - own_s
        with closing(sqlite3.connect(data / "tuner.db")) as database:
            kept = {job_id for (job_id,) in database.execute("select id from jobs")}
    taken = [taken_s for taken_s, _ in answers]
    raw = {
        "jobs": len(answers),
        "per_s": round(len(answers) / whole_s, 1),
        "median_s": round(percentile(taken, 0.5), 6),
        "longest_s": round(max(taken), 6),
        "server_cpu_s": round(server_s / len(answers), 6),
        "clients_cpu_s": round(own_s / len(answers), 6),
        "load_average": os.getloadavg()[0],
    }
    rate = NUM_CLIENTS * PER_S
    num_lost = len(answers) - len({job_id for _, job_id in answers} & kept)
    return [
        check_row(f"p99 of POST /jobs, {rate:g} a second with tokens, seconds", percentile(taken, 0.99), BAR_S, **raw),
        check_row(f"jobs lost of {rate:g} POST /jobs a second", num_lost, 0, jobs=len(answers)),
    ]


def main() -> None:
    """Measures and writes its rows into the results file."""
    arguments = parser_of(__doc__, seconds=30.0, out=RESULTS).parse_args()
    rows = measure(arguments.seconds)
    merge_report(arguments.out, rows, NO_GPU)


if __name__ == "__main__":
    main()
