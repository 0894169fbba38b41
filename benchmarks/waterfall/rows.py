"""Six middle pairs, and our schedule for each: the fastest built-in one for an H200, or the one given here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.ops.gemm.pairs import ffn_pair


@dataclass(frozen=True, kw_only=True)
class WaterfallRow:
    """A pair, and the schedule that is examined."""

    name: str
    workload: Workload
    schedule: Schedule
    #: The plan kind.
    plan_kind: PlanKind = PlanKind.FUSED

    @property
    def problem(self) -> Problem:
        """The problem, cold and in burst at any number of rows, so that the GPU's clock is the same for all."""
        return Problem(workload=self.workload, objective=Objective(l2=CacheState.COLD, regime=Regime.BURST))

    @property
    def candidate(self) -> Candidate:
        """The candidate to be proven and built."""
        return Candidate(plan_kind=self.plan_kind, schedule=self.schedule)

    def launched(self, plan_kind: PlanKind) -> WaterfallRow:
        """The same schedule, launched in a different way."""
        return replace(self, plan_kind=plan_kind)


def _pair(m: int, width: int, hidden: int, *, gated: bool) -> Workload:
    activation = Activation.SILU if gated else Activation.RELU
    return ffn_pair(m=m, d_in=width, d_hidden=hidden, d_out=width, activation=activation, gated=gated)


def _schedule(
    first: tuple[int, int, int],
    second: tuple[int, int, int],
    stages: int,
    warps: int,
    raster: RasterKind = RasterKind.COLUMN,
    *,
    reserved: int = 0,
    split: tuple[int, ...] = (),
    swap_ab: bool = False,
    cluster: tuple[int, int] = (1, 1),
) -> Schedule:
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in (first, second)),
        num_stages=stages,
        input_stages=stages,
        num_warps=warps,
        swap_ab=swap_ab,
        split_k=split,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
    )
    ordering = Ordering(
        rasters=(Raster(kind=raster), Raster(kind=raster)), assignment=Assignment.STATIC, reserved_sms=reserved
    )
    return Schedule.of(tiling=tiling, ordering=ordering)


#: In our schedules of the first, second, third and fifth row, neighbouring CTAs read the same weights.
ROWS = (
    WaterfallRow(
        name="8192-3584-swiglu/m192",
        workload=_pair(192, 8192, 3584, gated=True),
        schedule=_schedule((64, 88, 64), (64, 192, 64), 7, 4, reserved=3),
    ),
    WaterfallRow(
        name="12288-6144/m96",
        workload=_pair(96, 12288, 6144, gated=False),
        schedule=_schedule((48, 96, 128), (48, 192, 64), 6, 4),
    ),
    WaterfallRow(
        name="12288-6144/m128",
        workload=_pair(128, 12288, 6144, gated=False),
        schedule=_schedule((64, 96, 128), (64, 192, 64), 5, 4),
    ),
    WaterfallRow(
        name="7168-5120-swiglu/m300",
        workload=_pair(300, 7168, 5120, gated=True),
        schedule=_schedule((152, 64, 64), (152, 128, 64), 5, 8, swap_ab=True),
    ),
    WaterfallRow(
        name="8192-2816-swiglu/m192",
        workload=_pair(192, 8192, 2816, gated=True),
        schedule=_schedule((64, 64, 64), (64, 192, 64), 7, 4),
    ),
    WaterfallRow(
        name="4096-14336-swiglu/m192",
        workload=_pair(192, 4096, 14336, gated=True),
        schedule=_schedule((192, 56, 64), (192, 96, 64), 5, 12, RasterKind.ROW, split=(1, 3)),
    ),
)

#: Other schedules of the first row with that name; the fastest of them is examined.
OTHERS = {
    "7168-5120-swiglu/m300": (
        _schedule((112, 120, 64), (112, 168, 64), 5, 8, reserved=3),
        _schedule((104, 128, 64), (104, 256, 64), 4, 8, swap_ab=True),
        _schedule((304, 96, 64), (304, 192, 64), 4, 8, RasterKind.ROW, swap_ab=True, cluster=(2, 1)),
        _schedule((304, 64, 64), (304, 128, 64), 5, 8, RasterKind.ROW, swap_ab=True, cluster=(2, 1)),
        _schedule((160, 88, 64), (160, 168, 64), 4, 12),
    )
}
