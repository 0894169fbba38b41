"""`tuner explain` and `tuner prove`: explain or prove a schedule from a job, a trial, a file or a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.client.delivery.output import print_sentences
from tuner.commands.options import data_option, database_option, settings_of, settings_of_service, store_beside_servers

if TYPE_CHECKING:
    from tuner.core.problem.gpu import Gpu
    from tuner.core.problem.workload import Workload
    from tuner.core.schedule.plan_kinds import PlanKind
    from tuner.core.schedule.schedule import Schedule
    from tuner.core.trial.job import JobSpec, Trial

#: The GPU for which a line is read, unless `--target` names a different one.
_GPU_OF_LINES = "h200"


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A schedule and its context."""

    workload: Workload
    gpu: Gpu
    schedule: Schedule
    #: The plan kind of a trial; None for the fewest possible launches.
    plan_kind: PlanKind | None = None
    #: The measurements, in sentences.
    measured: tuple[str, ...] = ()

    @property
    def launched(self) -> Workload:
        """The workload whose ops the schedule is for."""
        from tuner.core.schedule.candidate import in_fewest_launches, launched

        return launched(self.workload, in_fewest_launches(self.workload, self.schedule))[0]


class _OfSchedule(click.Command):
    """A command that accepts a line together with the options of its pair. It is created on demand, since these need
    all kinds of ops."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own options, and those that describe a pair: `tuner-client submit KIND --help` describes them."""
        from tuner.client.options.pair_options import flat_options

        return [*super().get_params(ctx), *flat_options(hidden=True)]


target_option = click.option("--target", help=f"The GPU of a LINE, e.g. h100.  [default: {_GPU_OF_LINES}]")


@click.command(cls=_OfSchedule)
@click.argument("what", metavar="JOB|JOB/TRIAL|FILE|LINE")
@click.option("--waterfall", is_flag=True, help="Where the time of JOB/TRIAL goes, from its counters and its trace.")
@target_option
@data_option
@database_option
def explain(what: str, *, waterfall: bool, data: Path | None, database_url: str | None, **of_line: Any) -> None:
    """Explains why a schedule is fast or slow: bounds, waves, waits, traffic, and possible improvements.

    JOB is the id of a job whose result has a fused schedule, or one of an attention; JOB/TRIAL is a trial of a
    generated kernel. Measured times are shown next to forecasts. The server may be running. FILE is a JSON file of
    {"workload": ..., "gpu": an id of the catalogue, "schedule": ...}, or the manifest.json of an artifact. LINE is a
    schedule in its printed form, and its pair is given by the options of `tuner-client submit`: --m 16 --d-in 4096 ...
    """
    place = {"data": data, "database_url": database_url}
    if waterfall:
        print_sentences(_waterfall(what, place))
        return
    from tuner.core.insight.explain import explain as explained

    found = _from_job(what, place) if what.startswith("job-") and "/" not in what else _read(what, place, of_line)
    heading, *forecast = explained(found.launched, found.gpu, found.schedule)
    print_sentences((heading, *found.measured, *forecast))


@click.command(cls=_OfSchedule)
@click.argument("what", metavar="JOB/TRIAL|FILE|LINE")
@click.option("--plan-kind", help="E.g. fused.  [default: a trial's, or the one with the fewest launches]")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Files with the words of each launch, e.g. plan0.bin of an artifact, to use instead of the "
    "schedule's own plan.",
)
@click.option("--task", type=click.IntRange(min=0), help="The task to draw.  [default: the last one that waits]")
@target_option
@data_option
@database_option
def prove(
    what: str,
    plan_kind: str | None,
    plans: tuple[Path, ...],
    task: int | None,
    data: Path | None,
    database_url: str | None,
    **of_line: Any,
) -> None:
    """Proves that the launches of a schedule compute every tile exactly once, terminate, and read nothing too early.

    JOB/TRIAL is a trial of a generated kernel, whatever its outcome; the server may be running. FILE is a schedule
    file, as for `tuner explain`, or the manifest.json of an artifact. LINE is a schedule in its printed form, and its
    pair is given by the options of `tuner-client submit`: --m 16 --d-in 4096 ... The proof is printed as text, with a
    drawing of which task waits for which. If the proof fails, its counterexample is printed and drawn, and the exit
    code is 1.
    """
    from tuner.core.insight.prove import drawn, in_words, prove, refused
    from tuner.core.schedule.candidate import Candidate, in_fewest_launches, launched
    from tuner.core.schedule.plan_kinds import PlanKind
    from tuner.errors import PlanError

    found = _read(what, {"data": data, "database_url": database_url}, of_line)
    if plan_kind is not None and plan_kind not in [str(one) for one in PlanKind if one.is_ours]:
        known = ", ".join(str(one) for one in PlanKind if one.is_ours)
        raise click.BadParameter(
            f"{plan_kind!r} is not one of tuner's plan kinds; use one of {known}", param_hint="--plan-kind"
        )
    candidate = in_fewest_launches(found.workload, found.schedule)
    if kind := plan_kind or found.plan_kind:
        candidate = Candidate(plan_kind=PlanKind(kind), schedule=found.schedule)
    words = candidate.plan_kind.replace("_", " ")
    print_sentences([f"{found.workload.describe()} on {found.gpu.name}, {words}: {found.schedule}."])
    try:
        proven = prove(found.workload, found.gpu, candidate, [plan.read_bytes() for plan in plans])
    except PlanError as error:
        print_sentences(refused(error))
        raise SystemExit(1) from error
    for op in launched(found.workload, candidate)[0].launch_ops:
        print_sentences(["", f"{op.name} has its own launch; the code of its kind proved its plan."])
    for one in proven:
        print_sentences(["", *in_words(one), "", *drawn(one, task)])


def _read(what: str, place: dict[str, Any], of_line: dict[str, Any]) -> _Subject:
    """The schedule in a trial, a file or a line.

    Args:
        what: the trial, file or line.
        place: where the trial is.
        of_line: `--target` and the options of the pair, which a line needs.

    Raises:
        click.UsageError: options of a pair are given for something that has its own, or are missing for a line; or a
        job has no number.
        click.ClickException: the trial is the library's, or its GPU is not in the catalogue.
        InvalidInput: a file or a line is invalid.
    """
    from tuner.client.options.pair_options import pair_body, spelled_among, take_pair
    from tuner.core.problem.asked import workload_of
    from tuner.core.problem.gpu import parse_target
    from tuner.core.schedule.one_line import is_line, read_line
    from tuner.schedule_files.reading import named_trial, read_schedule

    target = of_line.pop("target")
    if not is_line(what) and (stray := spelled_among(of_line) or (target and "--target")):
        raise click.UsageError(f"{stray}: only allowed with a LINE; a trial or a file contains this itself")
    if (named := named_trial(what)) is not None:
        return _from_trial(*named, place)
    if what.startswith("job-") and not Path(what).exists():
        raise click.UsageError(f"{what}: choose one trial of the job, e.g. job-f7b1c593a8c2/12")
    settings_of(place)  # so that forecasts use its fits
    if is_line(what):
        schedule = read_line(what)
        workload = workload_of(pair_body(take_pair(of_line)))
        return _Subject(workload=workload, gpu=parse_target(target or _GPU_OF_LINES).gpu, schedule=schedule)
    workload, gpu, schedule = read_schedule(Path(what))
    return _Subject(workload=workload, gpu=gpu, schedule=schedule)


def _from_trial(job_id: str, number: int, place: dict[str, Any]) -> _Subject:
    from tuner.core.problem.gpu import SIMULATED_PREFIX
    from tuner.core.trial.outcome import Measured

    spec, trial = _trial(job_id, number, place)
    schedule = trial.candidate.schedule
    if schedule is None:
        raise click.ClickException(
            f"trial {number} of {job_id} ran the library, which has no schedule; choose a trial of a tuner kernel"
        )
    measured: tuple[str, ...] = ()
    if isinstance(trial.outcome, Measured):
        simulated = " (simulated)" if spec.target_id.startswith(SIMULATED_PREFIX) else ""
        measured = (f"Measured{simulated}: {trial.outcome.time_us:.1f} us, as trial {number}.",)
    kind = trial.candidate.plan_kind
    gpu = _gpu_of(job_id, spec)
    return _Subject(workload=spec.workload, gpu=gpu, schedule=schedule, plan_kind=kind, measured=measured)


def _trial(job_id: str, number: int, place: dict[str, Any]) -> tuple[JobSpec, Trial]:
    from tuner.store.jobs import jobs
    from tuner.store.trials import trials

    with store_beside_servers(settings_of_service(place)) as store, store.read() as session:
        return jobs.get(session, job_id).spec, trials.get(session, job_id, number)


def _gpu_of(job_id: str, spec: JobSpec) -> Gpu:
    from tuner.core.problem.gpu import CATALOGUE

    gpu = CATALOGUE.get(spec.target_id.split(":")[-1])
    if gpu is None:
        raise click.ClickException(f"{job_id} ran on {spec.target_id}, which is not in the catalogue of GPUs")
    return gpu


def _from_job(job_id: str, place: dict[str, Any]) -> _Subject:
    """A job's workload and its fastest fused schedule, and its measurements as sentences."""
    from tuner.core.insight.explain_job import best_to_explain, explain_job
    from tuner.core.insight.forecast_quality import judge_forecasts
    from tuner.store.jobs import jobs
    from tuner.store.results import bests
    from tuner.store.trials import trials

    with store_beside_servers(settings_of_service(place)) as store, store.read() as session:
        spec, best = jobs.get(session, job_id).spec, bests.find(session, job_id)
        history, forecasts = trials.history(session, job_id), trials.forecasts(session, job_id)
    row = best_to_explain(best.finals) if best else None
    if best is None or row is None or row.candidate.schedule is None:
        raise click.ClickException(
            f"{job_id} has no result with a tuner schedule; {job_id}/TRIAL names one of its trials"
        )
    sentences = tuple(explain_job(best, row, history, judge_forecasts(forecasts)))
    gpu = _gpu_of(job_id, spec)
    return _Subject(workload=spec.workload, gpu=gpu, schedule=row.candidate.schedule, measured=sentences)


def _waterfall(what: str, place: dict[str, Any]) -> list[str]:
    """The waterfall of a trial, as lines of text."""
    from tuner.core.insight.waterfall import NoWaterfall, in_words, waterfall_of_trial
    from tuner.core.problem.gpu import SIMULATED_PREFIX
    from tuner.core.trial.outcome import Measured
    from tuner.core.trial.records import InspectionKind
    from tuner.schedule_files.reading import named_trial
    from tuner.store.trials import inspections

    if (named := named_trial(what)) is None:
        problem = f"{what!r} is not a trial; use JOB/TRIAL, e.g. job-f7b1c593a8c2/12"
        raise click.BadParameter(problem, param_hint="JOB/TRIAL")
    job_id, number = named
    spec, trial = _trial(job_id, number, place)
    if not isinstance(trial.outcome, Measured):
        raise click.ClickException(f"trial {number} of {job_id} was not measured")
    with store_beside_servers(settings_of_service(place)) as store, store.read() as session:
        newest = [inspections.newest(session, job_id, number, kind) for kind in InspectionKind]
    try:
        results = [one.result for one in newest if one is not None]
        bars = waterfall_of_trial(trial.outcome, spec.workload.num_flops, results)
    except NoWaterfall as error:
        asked = f"`tuner-client counters {job_id} {number}` collects counters, and `tuner-client trace` a trace"
        if spec.target_id.startswith(SIMULATED_PREFIX):
            asked = "the simulated GPU has fewer counters than a waterfall needs; measure on a card"
        raise click.ClickException(f"trial {number} of {job_id} has no waterfall: {error}; {asked}") from error
    words = trial.candidate.plan_kind.replace("_", " ")
    heading = f"{spec.workload.describe()} on {spec.target_id}, trial {number}, {words}: {trial.candidate.schedule}"
    return [heading, *in_words(bars, trial.outcome.time_us)]
