"""Whether a service still responds to others under load: silent connections, idle streams, a long queue.

python -m benchmarks.cpu.crowds [--asks 200] [--out benchmarks/results/cpu/service.json]

It tests 1,100 silent connections with a process limit of 1,024 descriptors; 640 event streams of idle jobs, and one of
a job that is cancelled; and the front page with 2,500 queued jobs. It takes a minute.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, check_row, merge_report
from benchmarks.cpu.best import RESULTS, TARGET, cpu_s, p99_row, percentile, serving
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.ops.gemm.pairs import ffn_pair
from tuner.store import Store
from tuner.store.jobs import jobs

NUM_SILENT, NUM_DESCRIPTORS = 1100, 1024
NUM_STREAMS = 640
NUM_QUEUED = 2500
ANSWER_BAR_S = EVENT_BAR_S = 1.0
PAGE_BAR_S = 0.1


def spec(number: int, target_id: str = TARGET) -> JobSpec:
    """A distinct problem for each number."""
    return JobSpec(
        workload=ffn_pair(m=1 + number, d_in=1024, d_hidden=4096, d_out=1024),
        target_id=target_id,
        objective=Objective(),
        budget=Budget(trials=60, seconds=600),
    )


def queue(data: Path, count: int, target_id: str) -> list[str]:
    """Queues `count` jobs of a target; returns their ids."""
    store = Store.open(data)
    try:
        with store.write() as session:
            return [jobs.insert(session, spec(number, target_id), time.time()).id for number in range(count)]
    finally:
        store.close()


def others_beside_silence(num_asks: int) -> dict[str, Any]:
    """A row: the times of another client's requests, each over a new connection."""
    with ExitStack() as held:
        data = Path(held.enter_context(tempfile.TemporaryDirectory())) / "data"
        url, _ = held.enter_context(serving(data, NUM_DESCRIPTORS))
        address = urlsplit(url)
        for _ in range(NUM_SILENT):
            held.enter_context(closing(socket.create_connection((address.hostname, address.port), timeout=60)))
        taken = []
        for _ in range(num_asks):
            begin_s = time.perf_counter()
            httpx.get(f"{url}/jobs", timeout=60).raise_for_status()
            taken.append(time.perf_counter() - begin_s)
        raw = {"asks": num_asks, "median_s": round(percentile(taken, 0.5), 6)}
    check = f"longest answer beside {NUM_SILENT:,} silent connections at {NUM_DESCRIPTORS:,} descriptors, seconds"
    return check_row(check, max(taken), ANSWER_BAR_S, **raw, load_average=os.getloadavg()[0])


async def _stream(url: str, job_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An event stream whose first event has arrived."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"GET /jobs/{job_id}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
    await reader.readuntil(b"queued")
    return reader, writer


async def _event_s(url: str, idle: list[str], live: list[str]) -> list[float]:
    """Seconds from cancelling each live job to its event, while the other streams are open."""
    crowd = [await _stream(url, job_id) for job_id in idle]
    taken = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for job_id in live:
            reader, writer = await _stream(url, job_id)
            begin_s = time.perf_counter()
            (await http.post(f"/jobs/{job_id}:cancel")).raise_for_status()
            await reader.readuntil(b"cancelled")
            taken.append(time.perf_counter() - begin_s)
            writer.close()
    for _, writer in crowd:
        writer.close()
    return taken


def event_beside_streams(num_events: int) -> dict[str, Any]:
    """A row: the delay of an event."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        ids = queue(data, NUM_STREAMS + num_events, "simulated:a40")  # no worker has this target
        with serving(data) as (url, pid):
            before_s = cpu_s(pid)
            taken = asyncio.run(_event_s(url, ids[:NUM_STREAMS], ids[NUM_STREAMS:]))
            raw = {"events": num_events, "server_cpu_s": round(cpu_s(pid) - before_s, 6)}
    raw["median_s"] = round(percentile(taken, 0.5), 6)
    check = f"longest way of an event beside {NUM_STREAMS} idle streams, seconds"
    return check_row(check, max(taken), EVENT_BAR_S, **raw, load_average=os.getloadavg()[0])


def front_page(num_asks: int) -> dict[str, Any]:
    """A row: the time of the page."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        queue(data, NUM_QUEUED, "simulated:a40")
        with serving(data) as (url, pid):
            check = f"p99 of the front page with {NUM_QUEUED:,} queued jobs, seconds"
            return p99_row(check, url, pid, ["/"] * num_asks, PAGE_BAR_S)


def main() -> None:
    """Measures and writes its rows into the results file."""
    arguments = parser_of(__doc__, "asks", out=RESULTS).parse_args()
    for measure in (front_page, others_beside_silence, event_beside_streams):
        row = measure(arguments.asks if measure is not event_beside_streams else max(1, arguments.asks // 10))
        merge_report(arguments.out, [row], NO_GPU)


if __name__ == "__main__":
    main()
