"""The page of the fleet: cards, their activity, and the audit log."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tuner.api.fleet.history import series
from tuner.api.http.rendering import render
from tuner.api.listings.jobs_page import listed
from tuner.core.trial.records import Page
from tuner.service import Service
from tuner.service.fleet.cards import Worker
from tuner.store.listings.failures import JobFailures
from tuner.wire.pages.fleet import CardView, FleetPage, JobFailuresView, WorkerView
from tuner.wire.responses.responses import EnvironmentView, QuarantineView


def fleet_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/ui/fleet.json", response_model=FleetPage, include_in_schema=False)
    @router.get("/ui/fleet", response_model=FleetPage)
    def show_fleet(request: Request) -> Response:
        """GPUs, their state, and their work since the server started."""
        counts: dict[str, dict[str, int]] = {}
        for (target_id, state), count in sorted(service.fleet.counts().items()):
            counts.setdefault(target_id, {})[state] = count
        page = FleetPage(
            history=series(service.fleet_history.samples()),
            failures=[_failures(one) for one in service.fleet.failures()],
            workers=[_worker(one) for one in service.fleet.workers()],
            cards=[CardView.model_validate(card) for card in service.fleet.cards()],
            running=listed(service, Page(items=service.fleet.running(), next_cursor=None)),
            jobs=counts,
        )
        return render(request, "fleet.html", page)


def _failures(one: JobFailures) -> JobFailuresView:
    job = one.job
    return JobFailuresView(
        id=job.id,
        workload=job.spec.workload.describe(),
        num_trials=job.num_trials,
        num_failed=job.num_failed,
        kinds=one.kinds,
        page=f"/ui/jobs/{job.id}",
    )


def _worker(one: Worker) -> WorkerView:
    work = one.work
    return WorkerView(
        target=one.target.id,
        number=one.number,
        simulated=one.target.simulated,
        gpu_name=one.environment.gpu_name if one.environment else one.target.gpu.name,
        environment=None if one.environment is None else EnvironmentView.model_validate(one.environment),
        quarantine=None if one.quarantine is None else QuarantineView.of(one.quarantine),
        up_s=work.seconds,
        busy_share=min(1.0, work.busy_s / work.seconds) if work.seconds else 0.0,
        trials=work.trials,
        trials_per_minute=60 * sum(work.trials.values()) / work.seconds if work.seconds else 0.0,
        num_quarantines=work.num_quarantines,
    )
