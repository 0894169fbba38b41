"""A request's search settings: what "fast" means, and when it stops."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner.core.problem.workload import Workload
from tuner.core.trial.job import Budget, CacheState, Objective, Regime, default_regime
from tuner.wire.base.fields import Strict

MAX_TRIALS = 100_000
MAX_SECONDS = 7 * 24 * 3600.0

CacheName = Annotated[CacheState, Field(strict=False, description="content of the L2 when a sample starts")]
RegimeName = Annotated[
    Regime, Field(strict=False, description="the card's power state; default: sustained from 256 rows or images on")
]


class ObjectiveRequest(Strict):
    """What "fast" means."""

    l2: CacheName = CacheState.COLD
    regime: RegimeName | None = None
    energy_within_percent: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="take the kernel that uses the least energy, if it is at most this much slower than the fastest",
    )
    torch_compile: bool = Field(
        default=False,
        description=(
            "in the finals, the faster of the vendor's library and torch.compile is the library, if "
            "PyTorch is installed beside the card; this takes longer than a search in burst"
        ),
    )


class BudgetRequest(Strict):
    """When the search stops: at the first of these limits."""

    trials: int = Field(
        default=Budget.trials, ge=1, le=MAX_TRIALS, description=("number of recorded outcomes, including baselines")
    )
    seconds: float = Field(
        default=Budget.seconds, gt=0, le=MAX_SECONDS, description="wall-clock seconds, without the finals"
    )
    patience: int | None = Field(
        default=Budget.patience,
        ge=1,
        le=MAX_TRIALS,
        description="the search stops after this many trials in a row that are not at least half a percent faster",
    )

    def to_budget(self) -> Budget:
        """The budget of a search."""
        return Budget(**self.model_dump())


def objective_of(asked: ObjectiveRequest, workload: Workload) -> Objective:
    """The requested objective, by default with the regime for the number of rows."""
    return objective_for(asked.l2, asked.regime, workload)


def objective_for(l2: CacheState, regime: Regime | None, workload: Workload) -> Objective:
    """The requested objective; unless the regime is given, it depends on the number of rows."""
    return Objective(l2=l2, regime=regime or default_regime(workload))
