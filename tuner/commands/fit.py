"""`tuner fit`: fits the simulator's rates to the trials of your own card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from tuner import __version__
from tuner.commands.options import data_option, database_option, settings_of_service, store_beside_servers
from tuner.core.units import counted

if TYPE_CHECKING:
    from tuner.core.model.fit import Trial
    from tuner.core.model.judged import Judged
    from tuner.core.model.rates import Rates
    from tuner.core.problem.gpu import Gpu
    from tuner.core.problem.workload import Workload
    from tuner.core.schedule.candidate import Candidate

#: Minimum number of trials for a fit, of workloads, and of trials per workload.
MIN_TRIALS, MIN_WORKLOADS, MIN_OF_WORKLOAD = 200, 2, 20
#: Minimum improvement of a fit's ranking over the current rates; smaller ones could be chance.
MIN_GAIN = 0.01
#: Trials of a workload that are used for a fit.
NUM_SHOWN = 60


@click.command()
@click.argument("gpu_id", metavar="GPU")
@data_option
@database_option
def fit(gpu_id: str, **place: Any) -> None:
    """Fits the simulator to the measured trials of GPU, a target of this service, and stores the fit in its folder.

    It uses the trials of all jobs of products, at least 200 of at least two workloads. Each workload is evaluated with
    a fit to the others. A fit that does not rank better than the current rates is not stored. Takes minutes on all
    cores.
    """
    from tuner.core.model.fit import Fitter, weighed
    from tuner.core.model.judged import Judged, fitted_to_all, fitted_without
    from tuner.core.model.rates import rates_of
    from tuner.store.trials.measured import measured_candidates

    settings = settings_of_service(place)
    gpu = _gpu(gpu_id)
    with store_beside_servers(settings) as store, store.read() as session:
        found = [(workload, list(times)) for workload, times in measured_candidates(session, gpu_id)]
    by_workload = _usable(gpu, found)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        fitter = Fitter(weighed([one for of in by_workload.values() for one in _shown(of)]), pool)
        rates, without = fitted_to_all(fitter), fitted_without(fitter, by_workload)
        judged = [
            Compared(
                workload=name,
                in_use=Judged.of(trials, rates_of(gpu), pool),
                fitted=Judged.of(trials, without[name], pool),
            )
            for name, trials in by_workload.items()
        ]
    for one in judged:
        click.echo(str(one))
    before, after = (median(getattr(one, name) for one in judged) for name in ("before", "after"))
    click.echo(
        f"rank correlation, median of {counted(len(judged), 'workload')}: {before:.3f} with the current rates, "
        f"{after:.3f} with the fit"
    )
    num_trials = sum(map(len, by_workload.values()))
    if after < before + MIN_GAIN:
        problem = f"the fit to {counted(num_trials, 'trial')} ranks no better than the current rates"
        raise click.ClickException(f"not kept: {problem}")
    path = _keep(settings.fits_folder, gpu, rates, num_trials)
    click.echo(f"{path}: fitted to {counted(num_trials, 'trial')}; restart a running server to use it")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How well the current rates rank a workload's trials, and how well a fit to the others does."""

    workload: str
    in_use: Judged
    fitted: Judged

    @property
    def before(self) -> float:
        """Spearman's correlation with the current rates; 0 if all forecasts are equal."""
        return self.in_use.rank_correlation or 0.0

    @property
    def after(self) -> float:
        """The rank correlation of the fit."""
        return self.fitted.rank_correlation or 0.0

    def __str__(self) -> str:
        return (
            f"{self.workload}: {counted(len(self.fitted.measured_us), 'trial')}, rank correlation {self.before:.3f} "
            f"before, {self.after:.3f} for trials that the fit has not seen; forecast over measured "
            f"{self.fitted.ratio:.2f}"
        )


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
    """None for candidates without our launches, and for those that are no longer legal."""
    from tuner.core.model.fit import Trial
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
    return Trial(workload=name, plans=plans, time_us=time_us, is_programmatic=kind.is_programmatic)


def _shown(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of a workload used for a fit, most of them from its faster half."""
    from tuner.core.model.judged import shown

    return shown(trials, NUM_SHOWN, trials[0].workload, lambda trial: trial.time_us)


def _keep(folder: Path, gpu: Gpu, rates: Rates, num_trials: int) -> Path:
    from tuner.core.model.rates import Fit
    from tuner.private import make_private_folder, private_files

    today = datetime.now(UTC).date().isoformat()
    fitted = Fit(rates=rates, gpu=gpu.id, gpu_name=gpu.name, date=today, commit=__version__, num_trials=num_trials)
    path = folder / f"{gpu.id}.json"
    with private_files():
        make_private_folder(folder)
        path.write_text(json.dumps(fitted.to_json(), indent=1) + "\n")
    return path
