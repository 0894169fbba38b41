"""`tuner`: runs and keeps a service. Its libraries come with the extra `server`, so commands import them late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import __version__
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
from tuner.commands.token import audit, quota, token
from tuner.errors import StoreError, TunerError
from tuner.terminal import CannotPrint, printing
from tuner.versions import VERSION_MESSAGE, install_command

if TYPE_CHECKING:
    from tuner.core.problem.gpu import Gpu
    from tuner.core.problem.workload import Workload
    from tuner.core.schedule.schedule import Schedule
    from tuner.store import Store

#: Beside a running server `tuner gc` leaves what is younger: a file lies there before a row names it, seconds.
_SPARED_S = 600.0


class _Commands(click.Group):
    """Turns this project's errors into one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Reads the command line, which may ask for nothing but help, and runs the command."""
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


for command in (audit, db, doctor, fit, quota, scheduler, tls, token, worker):
    main.add_command(command)


@main.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 chooses a free one.  [default: 8000]")
@data_option
@click.option("--gpu", help="auto, simulated:<gpu> or none.  [default: auto]")
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
    help=("Share the data with other servers; run the jobs when no other server does."),
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
    """Brings the database to this version's tables."""
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
    "--limit", "limit_bytes", type=int, help=("Maximum bytes to keep.  [default: TUNER_DISK_LIMIT_BYTES, 8 GiB]")
)
def gc(limit_bytes: int | None, **place: Any) -> None:
    """Deletes builds, artifacts, samples, counters and traces, the oldest first, until the rest fits.

    Results and trials stay. Beside a running server what is younger than ten minutes stays, too.
    """
    settings = settings_of_service({**place, "disk_limit_bytes": limit_bytes})
    with store_beside_servers(settings) as store:
        freed = store.collect_garbage(settings.disk_limit_bytes, 0.0 if _is_alone(store) else _SPARED_S)
    click.echo(
        f"deleted {freed.num_files} files, the samples of {freed.num_jobs} jobs, {freed.num_inspections} "
        f"inspections, {freed.freed_bytes} bytes; {freed.kept_bytes} bytes are left"
    )


def _is_alone(store: Store) -> bool:
    """Whether no server runs; none can begin then before the store is closed."""
    try:
        store.leadership.take()
    except StoreError:
        return False
    return True


@main.group()
def key() -> None:
    """The key that signs packs: in the data folder, for its owner alone."""


@key.command("show")
@data_option
def show_key(data: Path | None) -> None:
    """Prints the public key, which clients pin; makes one where there is none."""
    from tuner.packs.signing import signing_key

    click.echo(signing_key(folder_of_service({"data": data})).public)


@key.command("rotate")
@data_option
def rotate_key(data: Path | None) -> None:
    """Makes a new key and prints its public half. Packs that the old one signed stay signed by it."""
    from tuner.packs.signing import rotate

    click.echo(rotate(folder_of_service({"data": data})).public)


@main.command()
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.option(
    "--cache", "cache_panels", type=int, required=True, help="Operand panels that the cache holds, at least 2."
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

    A tile reads its row's panel of A and its column's panel of W. The cache keeps the panels used last. With several
    k-steps a panel has a piece for each, and pieces are what is counted. The dashboard's order explorer shows the same.
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


@main.command()
@click.argument("what", metavar="JOB|JOB/TRIAL|SCHEDULE")
@click.option("--waterfall", is_flag=True, help="Where the time of JOB/TRIAL goes, from its counters and its trace.")
@data_option
@database_option
def explain(what: str, *, waterfall: bool, **place: Any) -> None:
    """Says in words and numbers why a schedule is fast or slow: bounds, waves, waits, traffic, what would be better.

    JOB is the id of a job whose result holds a fused schedule, or one of an attention. What was measured is told beside
    what was forecast. Its server may run meanwhile. SCHEDULE is a JSON file
    of {"workload": ..., "gpu": an id of the catalogue, "schedule": ...}, or the manifest.json of an artifact.
    JOB/TRIAL is the id of a job and the number of a trial, for --waterfall.
    """
    if waterfall:
        click.echo("\n".join(_waterfall(what, place)))
        return
    from tuner.core.insight.explain import explain as explained
    from tuner.schedule_files.reading import read_schedule

    measured: list[str] = []
    if what.startswith("job-"):
        (workload, gpu, schedule), measured = _from_job(what, place)
    else:
        settings_of(place)  # so that forecasts are by its fits
        workload, gpu, schedule = read_schedule(Path(what))
    heading, *forecast = explained(workload, gpu, schedule)
    for sentence in (heading, *measured, *forecast):
        click.echo(sentence)


@main.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--kind", help="The plan kind, e.g. fused or two_launches.  [default: the fewest possible launches]")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Words of a launch, e.g. plan0.bin of an artifact, instead of the schedule's own; one for each launch.",
)
@click.option("--task", type=click.IntRange(min=0), help="The task to draw.  [default: the last one that waits]")
def prove(path: Path, kind: str | None, plans: tuple[Path, ...], task: int | None) -> None:
    """Proves that the launches of a schedule compute everything once, end, and read nothing too early.

    FILE is a schedule file, as `tuner explain` takes it, or the manifest.json of an artifact. What is proven is said in
    words, with a drawing of which task waits for which. Where the proof fails, its witness is told and drawn, and the
    exit code is 1.
    """
    from tuner.core.insight.prove import drawn, in_words, prove, refused
    from tuner.core.schedule.candidate import Candidate, in_fewest_launches
    from tuner.core.schedule.plan_kinds import PlanKind
    from tuner.errors import PlanError
    from tuner.schedule_files.reading import read_schedule

    workload, gpu, schedule = read_schedule(path)
    if kind is not None and kind not in [str(one) for one in PlanKind if one.is_ours]:
        known = ", ".join(str(one) for one in PlanKind if one.is_ours)
        raise click.BadParameter(f"{kind!r} is unknown; there are {known}", param_hint="--kind")
    candidate = in_fewest_launches(workload, schedule)
    if kind is not None:
        candidate = Candidate(plan_kind=PlanKind(kind), schedule=schedule)
    click.echo(f"{workload.describe()} on {gpu.name}, {candidate.plan_kind.replace('_', ' ')}: {schedule}.")
    try:
        proven = prove(workload, gpu, candidate, [plan.read_bytes() for plan in plans])
    except PlanError as error:
        click.echo("\n".join(refused(error)))
        raise SystemExit(1) from error
    for op in workload.launch_ops:
        click.echo(f"\n{op.name}: has its own launch, whose plan was proven by its kind.")
    for one in proven:
        click.echo("\n".join(("", *in_words(one), "", *drawn(one, task))))


def _waterfall(what: str, place: dict[str, Any]) -> list[str]:
    """The bars of a trial, in lines."""
    from tuner.core.insight.waterfall import NoWaterfall, in_words, waterfall_of_trial
    from tuner.core.trial.outcome import Measured
    from tuner.core.trial.records import InspectionKind
    from tuner.store.jobs import jobs
    from tuner.store.trials import inspections, trials

    job_id, _, number = what.partition("/")
    if not number.isdecimal():
        raise click.BadParameter(
            f"{what!r} is not a trial; use JOB/TRIAL, e.g. job-f7b1c593a8c2/12", param_hint="JOB/TRIAL"
        )
    with store_beside_servers(settings_of_service(place)) as store, store.read() as session:
        spec, trial = jobs.get(session, job_id).spec, trials.get(session, job_id, int(number))
        newest = [inspections.newest(session, job_id, int(number), kind) for kind in InspectionKind]
    if not isinstance(trial.outcome, Measured):
        raise click.ClickException(f"trial {number} of {job_id} was not measured")
    try:
        results = [one.result for one in newest if one is not None]
        bars = waterfall_of_trial(trial.outcome, spec.workload.num_flops, results)
    except NoWaterfall as error:
        asked = f"curl -X POST .../jobs/{job_id}/trials/{number}/counters collects them again, and .../trace a trace"
        raise click.ClickException(f"trial {number} of {job_id} has no waterfall: {error}; {asked}") from error
    heading = f"{spec.workload.describe()} on {spec.target_id}, trial {number}: {trial.candidate}"
    return [heading, *in_words(bars, trial.outcome.time_us)]


def _from_job(job_id: str, place: dict[str, Any]) -> tuple[tuple[Workload, Gpu, Schedule], list[str]]:
    """What a job asked and its fastest fused schedule; and what it measured, in sentences."""
    from tuner.core.insight.explain_job import best_to_explain, explain_job
    from tuner.core.insight.forecast_quality import judge_forecasts
    from tuner.core.problem.gpu import CATALOGUE
    from tuner.store.jobs import jobs
    from tuner.store.results import bests
    from tuner.store.trials import trials

    with store_beside_servers(settings_of_service(place)) as store, store.read() as session:
        spec, best = jobs.get(session, job_id).spec, bests.find(session, job_id)
        history, forecasts = trials.history(session, job_id), trials.forecasts(session, job_id)
    row = best_to_explain(best.finals) if best else None
    gpu = CATALOGUE.get(spec.target_id.split(":")[-1])
    if gpu is None or best is None or row is None or row.candidate.schedule is None:
        raise click.ClickException(f"{job_id} has no result with a schedule of tuner's on a known GPU")
    sentences = explain_job(best, row, history, judge_forecasts(forecasts))
    return (spec.workload, gpu, row.candidate.schedule), sentences


def _extra_of(module: str | None) -> str:
    """The extra that brings a module that is not there."""
    is_clusters = (module or "").split(".")[0] in ("dask", "distributed", "cryptography")
    return "server,cluster" if is_clusters else "server"


if __name__ == "__main__":
    main()
