"""Commands for a cluster: its scheduler, its workers, its certificates. The extra `cluster` installs their
libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner import logs
from tuner.commands.options import settings_of, tls_option

insecure_option = click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow tcp:// beyond loopback: everyone with access to the port is trusted.",
)


@click.command()
@click.option("--scheduler", required=True, envvar="TUNER_SCHEDULER", help="tls://HOST:PORT of the scheduler.")
@tls_option
@click.option("--gpu", help="auto, simulated:<gpu>, or none to build only.  [default: auto]")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Simulated GPUs.")
@click.option("--places", type=click.IntRange(min=1), help="Number of parallel builds.  [default: all cores but one]")
@click.option("--name", default="", help="Name of the worker.  [default: machine and process id]")
@click.option("--listen", "host", help="This machine's address, as seen by the server.  [default: Dask's choice]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port for calls from the server.  [default: any]"
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tuner-builds"),
    show_default=True,
    help="Folder of compiled kernels.",
)
@insecure_option
def worker(count: int, places: int | None, name: str, host: str | None, port: int, cache: Path, **options: Any) -> None:
    """Measures on this machine's GPUs, and builds on its cores, for the server of a cluster."""
    from tuner.dispatch.cluster.join import WorkerOptions, work

    settings = settings_of(options)
    worker_options = WorkerOptions(
        gpu=settings.gpu,
        num_simulated=count,
        num_places=places,
        name=name,
        host=host,
        port=port,
        build_cache=cache,
        limits=settings.limits,
        latency_s=settings.simulated_latency_s,
        build_s=settings.simulated_build_s,
        torch_baseline=settings.torch_baseline,
    )
    assert settings.scheduler is not None  # required by click
    logs.configure(settings.log_level, settings.log_format)
    work(settings.scheduler, settings.tls, worker_options, click.echo, insecure=settings.insecure)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8786, show_default=True, help="Port; 0 chooses a free one."
)
@click.option("--plain", is_flag=True, help="Use tcp:// without certificates; only for one machine.")
@tls_option
@insecure_option
def scheduler(host: str, port: int, plain: bool, **options: Any) -> None:
    """Runs the scheduler of a cluster; prints its address on stdout."""
    from tuner.dispatch.cluster.join import schedule

    settings = settings_of(options)
    logs.configure(settings.log_level, settings.log_format)
    schedule(host, port, settings.tls, click.echo, plain=plain, insecure=settings.insecure)


@click.group()
def tls() -> None:
    """Certificates of a cluster."""


@tls.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("members", nargs=-1)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they are valid.")
def create(folder: Path, members: tuple[str, ...], days: int) -> None:
    """Creates an authority in FOLDER, if there is none, and a folder of certificates for each of MEMBERS.

    Without MEMBERS they are scheduler, server and worker. Copy each folder to its machine, and keep `authority`.
    """
    from tuner.dispatch.cluster.certificates import create as make

    for made in make(folder, members or ("scheduler", "server", "worker"), days):
        click.echo(str(made))
