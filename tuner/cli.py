"""`tuner`: runs and administers a service. Its libraries come with the extra `server`, so commands import them late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import __version__
from tuner.client.options.repeated import GivenOnce
from tuner.commands.cluster import scheduler, tls, worker
from tuner.commands.db import db
from tuner.commands.doctor import doctor
from tuner.commands.fit import fit
from tuner.commands.options import (
    data_option,
    database_option,
    folder_of_service,
    settings_of,
    settings_of_place,
    settings_of_service,
    store_beside_servers,
    tls_option,
)
from tuner.commands.schedules import explain, prove
from tuner.commands.token import audit, quota, token
from tuner.core.units import counted
from tuner.errors import StoreError, TunerError
from tuner.terminal import CannotPrint, printing
from tuner.versions import VERSION_MESSAGE, install_command

if TYPE_CHECKING:
    from tuner.store import Store

#: While a server runs, `tuner gc` keeps files younger than this, seconds, since a file is written before a row refers
#: to it.
_SPARED_S = 600.0


class _Commands(GivenOnce, click.Group):
    """Prints this project's errors as one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Parses the command line, which may only request help, and runs the command."""
        try:
            with printing():
                return super().main(*args, **extra)
        except CannotPrint as error:
            click.echo(f"Error: {error}", err=True)
            raise SystemExit(1) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except TunerError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            remedy = install_command(_extra_of(error.name))
            raise click.ClickException(f"{error.name} is not installed; run: {remedy}") from error


@click.group(cls=_Commands)
@click.version_option(__version__, message=VERSION_MESSAGE)
def main() -> None:
    """Runs a tuner service. Every option can be set as TUNER_<NAME> in the environment, too."""


for command in (audit, db, doctor, explain, fit, prove, quota, scheduler, tls, token, worker):
    main.add_command(command)


@main.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 chooses a free one.  [default: 8000]")
@data_option
@click.option("--gpu", help="auto, none, or simulated:<gpu>, several with commas.  [default: auto]")
@click.option(
    "--when",
    type=click.Choice(["always", "idle"]),
    help="idle: measure only while nobody else uses the GPU, and release it within a second.  [default: always]",
)
@click.option("--scheduler", help="tls://HOST:PORT of a cluster, whose workers measure instead of this machine.")
@tls_option
@database_option
@click.option(
    "--standby",
    is_flag=True,
    default=None,
    help="Share the data with other servers; run the jobs if no other server does.",
)
@click.option("--root-path", help="Path under which a proxy serves the service, e.g. /tuner.  [default: none]")
@click.option("--insecure", is_flag=True, default=None, help="Allow an address beyond loopback without tokens.")
def serve(**options: Any) -> None:
    """Serves the API and the dashboard; prints the address on stdout, logs on stderr."""
    from tuner.server import app

    settings = settings_of(options)
    if settings.tls is not None and settings.scheduler is None:
        raise click.UsageError("--tls names a cluster's certificates: add its --scheduler, or leave --tls out")
    app.serve(settings, announce=click.echo)


@main.command()
@data_option
def migrate(data: Path | None) -> None:
    """Migrates the database to this version's tables."""
    from tuner.store import Store
    from tuner.store.admin.migrate import revision_of

    settings = settings_of_place({"data": data})
    store = Store.open(settings.data, settings.database_url)
    try:
        click.echo(f"{settings.data} is up to date: its tables are at revision {revision_of(store.engine)}", err=True)
    finally:
        store.close()


@main.command()
@data_option
@database_option
@click.option(
    "--limit", "limit_bytes", type=int, help="Maximum bytes to keep.  [default: TUNER_DISK_LIMIT_BYTES, 8 GiB]"
)
def gc(limit_bytes: int | None, **place: Any) -> None:
    """Deletes builds, artifacts, samples, counters and traces, oldest first, until the rest fits.

    Results and trials are kept. While a server runs, so is everything younger than ten minutes.
    """
    settings = settings_of_service({**place, "disk_limit_bytes": limit_bytes})
    with store_beside_servers(settings) as store:
        freed = store.collect_garbage(settings.disk_limit_bytes, 0.0 if _is_alone(store) else _SPARED_S)
    click.echo(
        f"deleted {counted(freed.num_files, 'file')}, the samples of {counted(freed.num_jobs, 'job')}, "
        f"{counted(freed.num_inspections, 'inspection')}, {freed.freed_bytes} bytes; {freed.kept_bytes} bytes are left"
    )


def _is_alone(store: Store) -> bool:
    """Whether no server runs; in that case, none can start before the store is closed."""
    try:
        store.leadership.take()
    except StoreError:
        return False
    return True


@main.group()
def key() -> None:
    """The key that signs packs: in the data folder, readable only by its owner."""


@key.command("show")
@data_option
def show_key(data: Path | None) -> None:
    """Prints the public key, which clients pin; creates a key if there is none."""
    from tuner.packs.signing import signing_key

    click.echo(signing_key(folder_of_service({"data": data})).public)


@key.command("rotate")
@data_option
def rotate_key(data: Path | None) -> None:
    """Creates a new key and prints its public half. Existing packs keep the old key's signature."""
    from tuner.packs.signing import rotate

    click.echo(rotate(folder_of_service({"data": data})).public)


@main.command()
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.option(
    "--cache", "cache_panels", type=int, required=True, help="Number of operand panels in the cache, at least 2."
)
@click.option("--k", "num_steps", type=click.IntRange(min=1), default=1, show_default=True, help="K-steps of a tile.")
@click.option(
    "--policy",
    type=click.Choice(["lru", "fifo"]),
    default="lru",
    show_default=True,
    help="Which panel is evicted when the cache is full: the least recently used, or the oldest.",
)
@click.option("--list", "num_listed", type=click.IntRange(min=0), default=1, show_default=True, help="Paths to print.")
def orders(rows: int, cols: int, cache_panels: int, num_steps: int, policy: str, num_listed: int) -> None:
    """Finds the paths of least traffic over a grid of ROWS x COLS tiles, up to 4 x 4, from tile (0, 0).

    A tile reads its row's panel of A and its column's panel of W. With several k-steps, a panel has a piece for each,
    and pieces are counted. The dashboard's order explorer shows the same.
    """
    from itertools import islice

    from tuner.core.plan.order.exact_rasters import exact_orders, grid_text
    from tuner.core.plan.order.panel_cache import CachePolicy
    from tuner.core.plan.order.rasters import standard_traffic

    chosen, unit = CachePolicy(policy), "panels" if num_steps == 1 else "pieces"
    best = exact_orders(rows, cols, cache_panels, num_steps, chosen)
    click.echo(
        f"{rows} x {cols} tiles, a cache of {cache_panels} {unit}: at least {best.least_panels} {unit} from memory; "
        f"{best.num_paths:,} paths achieve this, not counting renamed rows and columns"
    )
    for raster, panels in standard_traffic(rows, cols, cache_panels, num_steps, chosen).items():
        lost = panels - best.least_panels
        click.echo(
            f"  {raster!s:<10} {panels:>4} {unit}" + (f", {lost} more ({lost / best.least_panels:.0%})" if lost else "")
        )
    for path in islice(best.paths(), num_listed):
        click.echo(f"\n{grid_text(path)}")


def _extra_of(module: str | None) -> str:
    """The extra that installs the missing module."""
    is_clusters = (module or "").split(".")[0] in ("dask", "distributed", "cryptography")
    return "server,cluster" if is_clusters else "server"


if __name__ == "__main__":
    main()
