"""`make demo`: starts a service, tunes one pair, shows the result, and fetches the kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tuner.client import Artifact, Client, ClientError
from tuner.client.commands.packs.making import pack_of_jobs
from tuner.client.delivery.artifact import MANIFEST
from tuner.client.delivery.files import place_below, write_atomically
from tuner.client.delivery.output import plain_console
from tuner.client.errors import Unreachable
from tuner.client.options.repeated import GivenOnce
from tuner.client.terminal import render
from tuner.core.trial.job import Budget
from tuner.private import make_private_file, make_private_folder
from tuner.terminal import CannotPrint, printing

#: The feed-forward block of Llama-3-8B at a batch of 16 tokens.
PAIR = {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "dtype": "fp16", "activation": "relu"}
#: Extra seconds per trial: the simulated GPU responds in milliseconds, too fast for progress to be visible.
_SIMULATED_LATENCY_S = "0.2"
#: The kernel as a pack, next to the artifact's files.
_PACK = "model.tunerpack"
#: Time that a server has to close its streams and end its child processes.
_STOPPED_WITHIN_S = 20.0


@click.command(cls=GivenOnce)
@click.option("--data", type=click.Path(path_type=Path), default=Path("build/demo-data"), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/best"), show_default=True)
@click.option("--gpu", default="auto", show_default=True, help="As for `tuner serve --gpu`.")
@click.option("--trials", type=click.IntRange(min=1), default=Budget.trials, show_default=True)
def main(data: Path, output: Path, gpu: str, trials: int) -> None:
    """Tunes the Llama-3-8B feed-forward pair end to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends, too
    try:
        with printing():
            console = plain_console(width=None if sys.stdout.isatty() else 132)
            with running_server(data, gpu) as url, Client(url) as client:
                page = show(client, {"pair": PAIR, "budget": {"trials": trials}}, output, console)
            console.print(f"make serve keeps it running, with the same data ({data}): http://127.0.0.1:8000{page}")
    except CannotPrint as error:
        sys.exit(f"demo: {error}")
    except ClientError as error:
        sys.exit(f"demo: {error}; the server's log is {log_path(data)}")
    except KeyboardInterrupt:
        sys.exit(f"\ndemo: interrupted; recorded results stay in {data}, and `make demo` continues from there")


def show(client: Client, body: dict[str, Any], output: Path, console: Console) -> str:
    """Runs the job with progress on screen, and writes its kernel to `output`; returns the path of the job's page."""
    environment = client.targets()[0]["environment"]
    console.print(f"The service is running; its dashboard is {client.url}/")
    if environment["simulated"]:
        console.print(
            f"No GPU is used: this is a {environment['gpu_name']}. Its times are simulated.", style="bold yellow"
        )
    else:
        console.print(f"Measuring on {environment['gpu_name']}, driver {environment['driver']}.")
    job = client.submit(body)
    render.progress(job, client.events(job["id"]), console)
    best = client.best(job["id"])
    console.print()
    console.print(render.results_table(best))
    console.print()
    if best["artifact"] is None:
        console.print("No generated kernel was measured in the finals, so there is nothing to fetch.")
    else:
        artifact = client.artifact(best["artifact"]["digest"])
        unpack(artifact, output)
        console.print(f"Fetched into {output}{render.mark(artifact.simulated)}: {', '.join(sorted(artifact.files))}")
        write_atomically(output / _PACK, pack_of_jobs(client, [job["id"]]))
        console.print(f"The same as a pack, which C and C++ programs can open: {output / _PACK}")
    return str(job["links"]["page"])


def unpack(artifact: Artifact, folder: Path) -> None:
    """Writes the artifact's files to `folder`, and removes those of the previous artifact."""
    before = folder / MANIFEST
    if before.is_file():
        for name in json.loads(before.read_text())["files"].keys() - artifact.files.keys():
            place_below(folder, name).unlink(missing_ok=True)
    for name, content in artifact.files.items():
        write_atomically(place_below(folder, name), content)


@contextmanager
def running_server(data: Path, gpu: str) -> Iterator[str]:
    """The address of a server that runs for the duration of the block.

    Raises:
        Unreachable: the server did not start; the message has the end of its log.
    """
    make_private_folder(data)
    make_private_file(log_path(data))
    command = [sys.executable, "-m", "tuner.cli", "serve", "--port", "0", "--data", str(data), "--gpu", gpu]
    variables = {"TUNER_SIMULATED_LATENCY_S": _SIMULATED_LATENCY_S} | os.environ
    # Ctrl-C reaches a terminal's whole process group, so the server has its own session and outlives the last request.
    with (
        log_path(data).open("w") as log,
        subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as server,
    ):
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise Unreachable("the server did not start:\n" + log_path(data).read_text(errors="replace").strip())
            yield address
        finally:
            server.terminate()
            try:
                server.wait(timeout=_STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                server.kill()


def log_path(data: Path) -> Path:
    """The path of the server's log."""
    return data / "server.log"


if __name__ == "__main__":
    main()
