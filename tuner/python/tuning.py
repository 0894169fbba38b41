"""`tuner.tune`: tunes a pair and returns its result, with a progress bar."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from tuner.client.connection.http import Client
from tuner.client.delivery.meaning import asked_objective, asked_workload, check_kernel
from tuner.client.delivery.output import plain_console
from tuner.client.documents.asked import Asked
from tuner.client.documents.documents import BaselineTime, JobDetail
from tuner.client.documents.orders import Orders, in_orders
from tuner.client.errors import ClientError
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.errors import InvalidInput
from tuner.python.bars import shown
from tuner.python.baselines import Program, baselines_of
from tuner.python.client_here import ClientHere
from tuner.python.result import Result
from tuner.python.where import connect

#: Polling interval for the job's progress, seconds.
_ASK_EVERY_S = 0.25
_pause = time.sleep
_ENDED = ("succeeded", "failed", "cancelled")


def tune(
    pair: Asked,
    *,
    target: str | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    seed: int | None = None,
    priors: Literal["nearest", "none"] | None = None,
    l2: Literal["cold", "warm"] | None = None,
    regime: Literal["burst", "sustained"] | None = None,
    energy_within: float | None = None,
    torch_compile: bool | None = None,
    schedules: Sequence[str | Mapping[str, Any]] = (),
    orders: Orders = (),
    sweep: Literal["rasters", "merges", "signals", "launches", "shares"] | None = None,
    baselines: Mapping[str, Program] | None = None,
    reuse: bool = False,
    url: str | None = None,
    token: str | None = None,
    data: str | Path | None = None,
    client: Client | None = None,
    progress: bool = True,
) -> Result:
    """Tunes a pair and returns when its job has ended. Missing options have the API's default.

    The job goes to the service at `url`, otherwise to that of `TUNER_URL` or of the configuration file. Without a
    service, it runs in this process, with its database in `data`. Ctrl-C cancels the job; its trials are kept.

    Args:
        pair: in the form of `POST /jobs`, e.g. ``{"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out":
            256}``.
        target: e.g. ``h200`` or ``simulated:h200``.
        trials: budget: recorded outcomes.
        seconds: budget: seconds of search.
        patience: budget: trials without progress.
        seed: of the search.
        priors: whether the search starts from earlier winners.
        l2: the contents of the L2 when a sample starts.
        regime: the card's power state.
        energy_within: the result is the kernel with the least energy among those that are at most this many percent
            slower than the fastest.
        torch_compile: whether the finals also compare with torch.compile, if PyTorch is installed.
        schedules: only these are tried, in the fewest possible launches: printed lines, or JSON.
        orders: each of the schedules is also tried in these: tables of (op, tile row, tile column), or functions of the
            tile rows and tile columns of each op that return one. They run here; a service receives the table. A dict
            gives them their names in tables and plots.
        sweep: which variants of the schedules, or of one that the service chooses, are tried: a study.
        baselines: your own programs, by name, which are checked, then timed in the same rounds as the library and all
            finalists: functions of PyTorch tensors, or `tuner.CudaSource`. They run only on this process's card; a
            warning has the reason for each that was not timed.
        reuse: whether a finished job of the same problem is accepted.
        url: of a service.
        token: for that service.
        data: in this process: the folder of database and kernels.
        client: a connection of `tuner.connect`, instead of `url`, `token` and `data`.
        progress: whether a bar is shown.

    Raises:
        ClientError: the request is refused, the job fails, or the service cannot be reached.
        InvalidInput: a schedule, an order or a baseline is invalid, or a baseline would have to be sent to a service.
    """
    programs = baselines_of(asked_workload(pair), baselines) if baselines else ()
    body: dict[str, Any] = {"pair": pair, "reuse": reuse}
    body |= _given({"target": target, "seed": seed, "priors": priors, "sweep": sweep})
    if schedules or orders:
        body["schedules"] = in_orders(asked_workload(pair), schedules, orders)
    body["budget"] = _given({"trials": trials, "seconds": seconds, "patience": patience})
    objective = {"l2": l2, "regime": regime, "energy_within_percent": energy_within, "torch_compile": torch_compile}
    body["objective"] = _given(objective)
    # In this process any simulated target is available.
    gpu = target if target and target.startswith(SIMULATED_PREFIX) else None
    opened = connect(url, token=token, data=data, gpu=gpu) if client is None else nullcontext(client)
    console = plain_console(stderr=True, quiet=not progress)
    with opened as service:
        here = service if isinstance(service, ClientHere) else None
        if here is not None:
            console.print(here.why, highlight=False, soft_wrap=True)
        elif programs:
            problem = f"can only run in this process, but the job would go to {service.url}"
            raise InvalidInput("baselines", problem, "pass data= instead of a service, or leave them out")
        job_id = service.submit(body)["id"]
        try:
            for _ in shown(_watched(service, job_id), console) if progress else _watched(service, job_id):
                pass
        except KeyboardInterrupt:
            _cancel(service, job_id)
            raise
        if here is not None and programs and service.job(job_id)["state"] == "succeeded":
            here.beside(job_id, programs)
            _warn_of_untimed(service.best(job_id)["baselines"])
        return _result(service, job_id, pair, target=target, l2=l2, regime=regime)


def _warn_of_untimed(baselines: Sequence[BaselineTime]) -> None:
    """Warns about each program without a time, with the reason; a simulated GPU runs none of them."""
    for one in baselines:
        if one["time_us"] is None:
            warnings.warn(f"the baseline {one['name']!r} was not timed: {one['reason']}", stacklevel=3)


def _watched(client: Client, job_id: str) -> Iterator[JobDetail]:
    """The job's state, repeatedly until it has ended."""
    while True:
        job = client.job(job_id)
        yield job
        if job["state"] in _ENDED:
            return
        _pause(_ASK_EVERY_S)


def _cancel(client: Client, job_id: str) -> None:
    """Cancels the job, and prints where its trials are."""
    try:
        job = client.cancel(job_id)
    except ClientError as error:
        plain_console(stderr=True).print(f"{job_id} could not be cancelled: {error}", highlight=False)
        return
    plain_console(stderr=True).print(
        f"{job_id} is {job['state']}; its trials are kept ({job['num_trials']}): {_where(client, job_id)}",
        highlight=False,
        soft_wrap=True,
    )


def _where(client: Client, job_id: str) -> str:
    """How to access a job's trials."""
    if isinstance(client, ClientHere):
        return f"tuner serve --data {client.data} shows them at /ui/jobs/{job_id}"
    return f"{client.url}/ui/jobs/{job_id}"


def _result(
    client: Client, job_id: str, pair: Asked, *, target: str | None, l2: str | None, regime: str | None
) -> Result:
    best = client.best(job_id)
    artifact = None if best["artifact"] is None else client.artifact(best["artifact"]["digest"])
    if artifact is not None:
        workload = asked_workload(pair)
        check_kernel(
            artifact.manifest,
            job_ids=[job_id],
            target=target or best["target"],
            kinds=[row["candidate"]["plan_kind"] for row in best["finals"]],
            workload=workload,
            objective=asked_objective(workload, l2, regime),
        )
    job, trials = client.job(job_id), tuple(client.trials(job_id, limit=500))
    study = client.study(job_id) if job["num_given"] else None
    return Result(job=job, best=best, trials=trials, artifact=artifact, study=study)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
