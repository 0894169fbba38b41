"""Small domain values for tests that do not depend on them."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import Budget, JobSpec, Objective, Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome, Rejected, Stage
from tuner.core.trial.records import Best, PolicyTime, Verdict
from tuner.core.trial.reports.library_recipe import LibraryCall, LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchTime
from tuner.core.trial.samples import Round
from tuner.ops.gemm.pairs import ffn_pair

TARGET = "simulated:h200"

#: A result without a job's id, which the caller adds.
BEST = Best(
    job_id="",
    verdict=Verdict.TIE,
    winner=PlanKind.LIBRARY,
    tie_band=0.02,
    procedure=FinalsProcedure(num_rounds=7, min_tie_band=0.02),
    finals=(),
    reference_us=1.0,
    artifact_digest=None,
    environment=Environment(gpu_name="simulated", simulated=True),
    policies=(PolicyTime(policy="append", forecast_us=1.5, measured_us=None, trial_number=None),),
    library=LibraryRecipe(
        cublaslt_version=130100,
        beside=False,
        calls=(
            LibraryCall(
                op="up",
                rows=512,
                columns=16,
                k=256,
                data_type="CUDA_R_16F",
                beta=0,
                epilogue="CUBLASLT_EPILOGUE_RELU",
                algorithm={"id": 66, "tile_id": 20},
                heuristic_index=3,
                workspace_bytes=0,
            ),
        ),
    ),
    torch=TorchTime(time_us=1.5, library_speedup=1.2, num_rounds=7),
)


def workload(m: int = 16) -> Workload:
    return ffn_pair(m=m, d_in=256, d_hidden=512, d_out=256)


def spec(m: int = 16, *, trials: int = 10, seconds: float = 600.0, seed: int = 0, target_id: str = TARGET) -> JobSpec:
    return JobSpec(
        workload=workload(m),
        target_id=target_id,
        objective=Objective(),
        budget=Budget(trials=trials, seconds=seconds),
        seed=seed,
    )


def schedule(stages: int = 2) -> Schedule:
    tiling = Tiling(tiles=(Tile(m=16, n=64, k=64), Tile(m=16, n=64, k=64)), num_stages=stages, num_warps=4)
    return Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(), Raster())))


def measured(time_us: float, **changes: Any) -> Measured:
    values: dict[str, Any] = {
        "time_us": time_us,
        "library_us": 100.0,
        "speedup": 100.0 / time_us,
        "spread": 0.01,
        "rounds": (Round(time_us=time_us, library_us=100.0), Round(time_us=time_us + 0.1, library_us=100.0)),
        "rel_error": 0.0,
    }
    return Measured(**{**values, **changes})


def failed(kind: FailureKind = FailureKind.HANG) -> Failed:
    return Failed(stage=Stage.TIME, kind=kind, reason="a wait never ended")


def rejected() -> Rejected:
    return Rejected(stage=Stage.VERIFY, reason="too large")


def tried(number: int, candidate: Candidate, time_us: float) -> Trial:
    """A measured trial of a candidate, chosen with knowledge of all earlier trials."""
    return Trial(
        number=number,
        candidate=candidate,
        outcome=measured(time_us),
        num_known=number,
        started_at=0.0,
        finished_at=0.0,
    )


def trial(number: int, outcome: Outcome, kind: PlanKind = PlanKind.FUSED, stages: int = 2) -> Trial:
    candidate = Candidate(plan_kind=kind, schedule=schedule(stages) if kind.is_ours else None)
    return Trial(
        number=number,
        num_known=number,
        candidate=candidate,
        outcome=outcome,
        started_at=1.0 + number,
        finished_at=1.5 + number,
    )
