"""`make demo`: starts a service, tunes one pair, shows the answer, and fetches the kernel."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tuner.client import Client, ClientError, render
from tuner.client.errors import Unreachable
from tuner.client.files import write_atomically

#: The feed-forward block of Llama-3-8B at a batch of 16 tokens.
PAIR = {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "dtype": "fp16", "activation": "relu"}
PORT = 8000
#: A first start migrates a database, and with a GPU makes a CUDA context.
_READY_WITHIN_S = 60.0


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path("build/demo-data"), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/best"), show_default=True)
@click.option("--gpu", default="auto", show_default=True, help="As `tuner serve --gpu` takes it.")
@click.option("--trials", type=click.IntRange(min=1), default=60, show_default=True)
def main(data: Path, output: Path, gpu: str, trials: int) -> None:
    """Tunes the Llama-3-8B feed-forward pair end to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended, too
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        with running_server(data, gpu) as url, Client(url) as client:
            show(client, {"pair": PAIR, "budget": {"trials": trials}}, output, console)
    except ClientError as error:
        sys.exit(f"demo: {error}; the server's log is {log_path(data)}")
    except KeyboardInterrupt:
        sys.exit(f"\ndemo: interrupted; what was recorded stays in {data}, and `make demo` goes on from it")
    console.print(f"\n[bold]make serve[/] keeps it running, with the same data ({data}): http://127.0.0.1:{PORT}/")


def show(client: Client, body: dict[str, Any], output: Path, console: Console) -> None:
    """Runs the job on screen and leaves its kernel under `output`."""
    environment = client.targets()[0]["environment"]
    console.print(f"The service runs; its dashboard is {client.url}/")
    if environment["simulated"]:
        console.print(f"[bold yellow]No GPU is used: this is a {environment['gpu_name']}. Its times are a model's.[/]")
    else:
        console.print(f"Measuring on {environment['gpu_name']}, driver {environment['driver']}.")
    job = client.submit(body)
    render.progress(job, client.events(job["id"]), console)
    best = client.best(job["id"])
    console.print()
    console.print(render.results_table(best))
    if best["artifact"] is None:
        console.print("No kernel of ours was measured in the finals, so there is nothing to fetch.")
        return
    artifact = client.artifact(best["artifact"]["digest"])
    for name, content in artifact.files.items():
        write_atomically(output / name, content)
    console.print(f"\nFetched into {output}{render.mark(artifact.simulated)}: {', '.join(sorted(artifact.files))}")


@contextmanager
def running_server(data: Path, gpu: str) -> Iterator[str]:
    """The address of a server that lives as long as the block.

    Raises:
        Unreachable: it did not come up; the message holds the end of its log.
    """
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "tuner.cli", "serve", "--port", str(port), "--data", str(data), "--gpu", gpu]
    with (
        log_path(data).open("w") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, server, log_path(data))
            yield url
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Returns as soon as the server answers.

    Raises:
        Unreachable: it ended, or was silent for a minute.
    """
    deadline = time.monotonic() + _READY_WITHIN_S
    with Client(url) as client:
        while server.poll() is None and time.monotonic() < deadline:
            try:
                client.targets()
                return
            except Unreachable:
                time.sleep(0.1)
    last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise Unreachable(f"the server did not start:\n{last_lines}\n")


def log_path(data: Path) -> Path:
    """Where the server's log goes."""
    return data / "server.log"


def free_port() -> int:
    """`PORT` where it is free, else any."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unreachable("no port of the loopback interface is free")


if __name__ == "__main__":
    main()
