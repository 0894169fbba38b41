"""The page of results: those of finished jobs, and the built-in winners."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tuner.api.http.rendering import render
from tuner.api.routes.jobs import Cursor, Size, Word
from tuner.core.problem.ops.op import Op
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Best, JobRecord, Verdict, kernel_row
from tuner.service import Service
from tuner.wire.base.view import is_simulated, moment
from tuner.wire.pages.fleet import KnownResult, ResultFilterView, ResultsPage
from tuner.wire.responses.responses import PageView

_RESULTS_PER_PAGE = 50


def results_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/ui/results.json", response_model=ResultsPage, include_in_schema=False)
    @router.get("/ui/results", response_model=ResultsPage)
    def show_results(
        request: Request, cursor: Cursor = None, target: Word = None, m: Size = None, n: Size = None, k: Size = None
    ) -> Response:
        """Results per GPU model: the library's, ours, and the verdict."""
        found = service.jobs(
            cursor=cursor, limit=_RESULTS_PER_PAGE, state=JobState.SUCCEEDED, target_id=target, m=m, n=n, k=k
        )
        results = service.overview.results([job.id for job in found.items])
        items = [_of_job(job, results[job.id]) for job in found.items if job.id in results]
        shipped = [one for one in _shipped(service) if _matches(one, target, m, n, k)]
        page = ResultsPage(
            filter=ResultFilterView(target=target, m=m, n=n, k=k),
            jobs=PageView(items=items, next_cursor=found.next_cursor),
            shipped=[one for one, _, _ in shipped],
            shipped_targets=service.overview.shipped_targets(),
        )
        return render(request, "results.html", page)


def _of_job(job: JobRecord, best: Best) -> KnownResult:
    spec = job.spec
    ours = kernel_row(best.finals, best.winner, None)
    return KnownResult(
        gpu=best.environment.gpu_name,
        simulated=is_simulated(spec.target_id),
        workload=spec.workload.describe(),
        m=spec.workload.ops[0].to_json().get("m"),
        dtype=str(spec.workload.dtype),
        objective=f"L2 {spec.objective.l2}, {spec.objective.regime}",
        library_us=job.library_us,
        torch_us=best.torch.time_us if best.torch else None,
        ours_us=ours.time_us if ours else None,
        speedup=ours.speedup if ours else None,
        ours=ours.candidate.plan_kind if ours else None,
        winner=best.winner,
        verdict=best.verdict,
        source=job.id,
        href=f"/ui/jobs/{job.id}",
        at=None if job.finished_at is None else moment(job.finished_at),
        kernel_version=best.environment.kernel_version,
    )


def _over(library_us: float | None, ours_us: float | None) -> float | None:
    return library_us / ours_us if library_us and ours_us else None


def _shipped(service: Service) -> list[tuple[KnownResult, str, Op]]:
    """The fastest result of each problem, with its target and its first op."""
    found = []
    for target_id, one in service.overview.shipped():
        first = one.workload.ops[0]
        finals = service.overview.shipped_finals(target_id).get(one.source)
        ours_us = finals.ours_us if finals else one.time_us
        library_us = finals.library_us if finals else one.time_us * one.speedup
        result = KnownResult(
            gpu=target_id,
            simulated=is_simulated(target_id),
            workload=one.workload.describe(),
            m=first.to_json().get("m"),
            dtype=str(one.workload.dtype),
            objective=f"L2 {one.objective.l2}, {one.objective.regime}",
            library_us=library_us,
            torch_us=finals.torch_us if finals else None,
            ours_us=ours_us,
            speedup=_over(library_us, ours_us),
            ours=finals.ours if finals else one.candidate.plan_kind,
            winner=finals.winner if finals else one.candidate.plan_kind,
            verdict=Verdict(finals.verdict) if finals else None,
            source=one.source,
            href="",
            at=None,
            kernel_version=finals.kernel_version if finals else one.kernel_version,
        )
        found.append((result, target_id, first))
    return found


def _matches(one: tuple[KnownResult, str, Op], target: str | None, m: int | None, n: int | None, k: int | None) -> bool:
    _, target_id, first = one
    given = (target_id, *(first.to_json().get(size) for size in "mnk"))
    return all(asked is None or asked == it for asked, it in zip((target, m, n, k), given, strict=True))
