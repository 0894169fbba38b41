"""`tuner fit`: fits the simulator's rates to the trials of your own card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import click

from tuner import __version__
from tuner.commands.options import data_option, database_option, settings_of, settings_of_service, store_beside_servers
from tuner.core.units import counted

if TYPE_CHECKING:
    from tuner.core.model.fit import Trial
    from tuner.core.model.own_fit import Changed, Evaluated
    from tuner.core.model.rates import Rates
    from tuner.core.problem.gpu import Gpu
    from tuner.core.problem.workload import Workload
    from tuner.core.schedule.candidate import Candidate

#: Minimum numbers for a fit: trials, workloads, and trials per workload. With two workloads, a fit to one would be
#: evaluated on the other.
MIN_TRIALS, MIN_WORKLOADS, MIN_OF_WORKLOAD = 200, 3, 20
#: Trials of a workload that are used for a fit.
NUM_SHOWN = 100
#: Smaller changes of a rate, as logarithms, are not shown.
SHOWN_CHANGE = 0.01


@click.command()
@click.argument("gpu_id", metavar="GPU")
@click.option("--remove", is_flag=True, help="Remove the stored fit of GPU instead, and return to the built-in rates.")
@data_option
@database_option
def fit(gpu_id: str, *, remove: bool, **place: Any) -> None:
    """Fits the simulator to the measured trials of GPU, a target of this service, and stores the fit in its folder.

    It uses the trials of all jobs of products, at least 200 of at least three workloads, and starts from the built-in
    rates of this GPU, otherwise from its data sheet. Each workload is evaluated with a fit to the others. A fit that
    does not rank better than its start is not stored. Takes minutes on all cores.
    """
    from tuner.core.model.own_fit import OwnFit, is_better
    from tuner.core.model.rates import CATALOGUE_RATES, shipped_fit
    from tuner.store.trials.measured import measured_candidates

    if remove:
        _remove(settings_of(place, reads_fits=False).fits_folder, gpu_id)
        return
    settings = settings_of_service(place)
    gpu = _gpu(gpu_id)
    with store_beside_servers(settings) as store, store.read() as session:
        found = [(workload, list(times)) for workload, times in measured_candidates(session, gpu_id)]
    by_workload = _usable(gpu, found)
    shipped, path = shipped_fit(gpu.id), settings.fits_folder / f"{gpu.id}.json"
    start_name = "the shipped rates" if shipped else "the rates of the data sheet"
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        shown = [one for of in by_workload.values() for one in _shown(of)]
        own = OwnFit.to(shown, shipped.rates if shipped else CATALOGUE_RATES, pool)
        rates, evaluated = own.fitted(), own.evaluated()
    click.echo("\n".join([*_changes(own.changes(rates), start_name), *_evaluations(evaluated, start_name)]))
    if not is_better(evaluated):
        back = f"stays in use: `tuner fit {gpu.id} --remove` returns to {start_name}"
        kept = f"; {path}, from an earlier fit, {back}" if path.is_file() else ""
        problem = f"the fit to {counted(len(shown), 'trial')} ranks no better than {start_name}"
        raise click.ClickException(f"not kept: {problem}{kept}")
    _keep(path, gpu, rates, len(shown))
    click.echo(f"{path}: fitted to {counted(len(shown), 'trial')}; restart a running server to use it")


def _changes(changes: Sequence[Changed], start_name: str) -> list[str]:
    """What a fit changed, and what it left unchanged."""
    moved = [one for one in changes if one.change >= SHOWN_CHANGE]
    unknown = [one.name for one in changes if not one.is_determined]
    lines = [f"Fitted, from {start_name}:"]
    lines += [f"  {one.name:<24} {one.before:9.4g} -> {one.after:.4g}" for one in moved]
    left = f"Left within {SHOWN_CHANGE:.0%}: {len(changes) - len(moved)} others"
    return [*lines, f"{left}, {len(unknown)} of which no trial depends on." if unknown else f"{left}."]


def _evaluations(evaluated: Sequence[Evaluated], start_name: str) -> list[str]:
    """The rank correlation of each workload, then of all of them."""
    lines = ["Rank correlation (trials), before, and by a fit to the other workloads:"]
    lines += [f"  {e.before:.3f} -> {e.after:.3f} ({e.num_trials})  {e.workload}" for e in evaluated]
    before, after = [one.before for one in evaluated], [one.after for one in evaluated]
    return [
        *lines,
        f"  {fmean(before):.3f} -> {fmean(after):.3f}  mean of {counted(len(evaluated), 'workload')}",
        f"  {median(before):.3f} -> {median(after):.3f}  median; before: {start_name}",
    ]


def _gpu(gpu_id: str) -> Gpu:
    """The GPU, from the catalogue or a card of this machine.

    Raises:
        click.ClickException: it is neither, or it is simulated.
    """
    from tuner.core.problem.gpu import CATALOGUE, SIMULATED_PREFIX

    if gpu_id.startswith(SIMULATED_PREFIX):
        raise click.ClickException(f"the times of {gpu_id} come from the simulator; choose a GPU that was measured")
    gpu = CATALOGUE.get(gpu_id) or next((gpu for gpu in _live_gpus() if gpu.id == gpu_id), None)
    if gpu is None:
        known = ", ".join(CATALOGUE)
        raise click.ClickException(
            f"there is no GPU called {gpu_id!a}: use one of {known}, or run this on the card's machine"
        )
    return gpu


def _live_gpus() -> Iterable[Gpu]:
    """GPUs of this machine, each queried in a separate process."""
    from tuner.core.problem.gpu import gpu_from_live
    from tuner.errors import WorkerError
    from tuner.workers.host.cards import usable_gpus

    try:
        cards = usable_gpus()
    except WorkerError:  # no driver, or no worker libraries
        return
    for card in cards:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield gpu_from_live(pool.submit(_facts, card.uuid).result())


def _facts(uuid: str) -> Any:
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    from tuner.workers.gpu.child import live_facts

    return live_facts(uuid)


def _usable(gpu: Gpu, found: Sequence[tuple[Workload, list[tuple[Candidate, float]]]]) -> dict[str, list[Trial]]:
    """Trials by workload, for workloads that have enough.

    Raises:
        click.ClickException: there are too few.
    """
    trials = [[one for candidate, time in times if (one := _trial(w, gpu, candidate, time))] for w, times in found]
    enough = {of[0].workload: of for of in trials if len(of) >= MIN_OF_WORKLOAD}
    num_trials = sum(map(len, enough.values()))
    if num_trials < MIN_TRIALS or len(enough) < MIN_WORKLOADS:
        raise click.ClickException(
            f"only {counted(num_trials, 'usable trial')} over {counted(len(enough), 'workload')} on {gpu.id}; a fit "
            f"needs at least {MIN_TRIALS} over {MIN_WORKLOADS}, {MIN_OF_WORKLOAD} per workload; run more jobs of other "
            "shapes"
        )
    return enough


def _trial(workload: Workload, gpu: Gpu, candidate: Candidate, time_us: float) -> Trial | None:
    """None for candidates without our launches, for those that are no longer legal, and for the largest plans."""
    from tuner.core.model.fit import MAX_FITTED_TASKS, Trial
    from tuner.core.proof.candidate_plans import plans_for
    from tuner.errors import IllegalSchedule, PlanError

    kind = candidate.plan_kind
    if kind.is_side_by_side:
        return None
    try:
        plans = plans_for(workload, gpu, candidate)
    except (IllegalSchedule, PlanError):
        return None
    name = f"{workload.describe()} ({workload.digest[:8]})"
    trial = Trial(workload=name, plans=plans, time_us=time_us, is_programmatic=kind.is_programmatic)
    return trial if trial.num_tasks <= MAX_FITTED_TASKS else None


def _shown(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of a workload used for a fit, most of them from its faster half."""
    from tuner.core.model.judged import shown

    return shown(trials, NUM_SHOWN, trials[0].workload, lambda trial: trial.time_us)


def _keep(path: Path, gpu: Gpu, rates: Rates, num_trials: int) -> None:
    """Stores the fit.

    Raises:
        click.ClickException: the file cannot be written; the fit is printed instead.
    """
    from tuner.client.delivery.files import write_atomically
    from tuner.core.model.rates import Fit
    from tuner.private import make_private_folder, private_files

    today = datetime.now(UTC).date().isoformat()
    fitted = Fit(rates=rates, gpu=gpu.id, gpu_name=gpu.name, date=today, commit=__version__, num_trials=num_trials)
    text = json.dumps(fitted.to_json(), indent=1) + "\n"
    try:
        with private_files():
            make_private_folder(path.parent)
            write_atomically(path, text.encode())
    except OSError as error:
        click.echo(text, nl=False)
        problem = f"{path} cannot be written: {error.strerror}; put the fit that is printed above there"
        raise click.ClickException(problem) from error


def _remove(folder: Path, gpu_id: str) -> None:
    """Removes a stored fit, which may be invalid, or for a GPU that this machine no longer has.

    Raises:
        click.ClickException: there is none.
    """
    stored = sorted(folder.glob("*.json"))
    path = next((one for one in stored if one.stem == gpu_id), None)
    if path is None:
        others = f"; there are fits of {', '.join(one.stem for one in stored)}" if stored else ""
        raise click.ClickException(f"{folder} has no fit of {gpu_id!a}{others}")
    path.unlink()
    click.echo(f"{path} is removed; restart a running server to use the built-in rates of {gpu_id}")
