"""A job in a store whose single trial has a trace with as many tasks as its schedule, for pages that draw one."""

from __future__ import annotations

from pathlib import Path

from tuner.core.insight.traces.tracing import trace_metrics
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Ordering, Raster, RasterKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import InspectionKind
from tuner.ops.gemm.pairs import ffn_pair
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import inspections, trials
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

TARGET = "simulated:h200"

#: 64 and 32 tiles of 64 x 64.
SMALL = ffn_pair(m=256, d_in=512, d_hidden=1024, d_out=512)
#: 20,480 tasks, which the page should draw in two seconds.
LARGE = ffn_pair(m=4096, d_in=4096, d_hidden=16384, d_out=4096)


def schedule_of(workload: Workload) -> Schedule:
    """Tiles of 64 x 64, in column-major order."""
    tiles = (Tile(m=64, n=64, k=64),) * len(workload.tile_ops)
    tiling = Tiling(engine=Engine.MMA, tiles=tiles, num_stages=4, num_warps=4)
    rasters = (Raster(kind=RasterKind.COLUMN),) * len(workload.tile_ops)
    return Schedule.of(tiling=tiling, ordering=Ordering(rasters=rasters))


def store_traced_job(path: Path, workload: Workload) -> str:
    """Writes a job that was cancelled after its single trial, and the trial's trace, into a data folder; returns the
    job's id."""
    candidate = fused(schedule_of(workload))
    twin = SimulatedEvaluator(parse_target(TARGET), faults=Faults(hang=0.0, crash=0.0, wrong_numbers=0.0))
    problem = Problem(workload=workload, objective=Objective(), seed=0)
    outcome = twin.measure(problem, twin.prepare(problem, candidate))  # type: ignore[arg-type]
    assert isinstance(outcome, Measured)
    trace = twin.trace(problem, candidate)
    spec = JobSpec(workload=workload, target_id=TARGET, objective=Objective(), budget=Budget(trials=1))
    store = Store.open(path)
    with store.write() as session:
        job_id = jobs.insert(session, spec, now=1.0).id
        jobs.set_state(session, job_id, JobState.SEARCHING, 2.0)
        trial = Trial(number=0, num_known=0, candidate=candidate, outcome=outcome, started_at=2.0, finished_at=3.0)
        trials.record(session, job_id, trial, 1.0)
        jobs.set_state(session, job_id, JobState.CANCELLED, 4.0)
        asked, _ = inspections.ask(session, job_id, 0, InspectionKind.TRACE, None, is_urgent=True, now=4.0)
        inspections.begin(session, asked.seq)
        inspections.finish(session, asked.seq, trace, trace_metrics(trace), 5.0)
    store.close()
    return job_id
