"""The raw samples of a trial."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from tuner.core.problem.objective import CacheState, LaunchStyle, Regime
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import JobRecord
from tuner.core.trial.samples import DropReason, Round
from tuner.wire.base.view import View, is_simulated


class FinalsProcedureView(View):
    """How the finals were run."""

    num_rounds: int = Field(description="rounds in each of the two processes")
    min_tie_band: float = Field(description="minimum relative difference between two times that are not a tie")


class PolicyTimeView(View):
    """The time of a policy's order with the kernel of the job's best fused schedule."""

    policy: str = Field(description="`searched` for the order of that schedule itself, else the policy's name")
    forecast_us: float = Field(description="from the simulator, microseconds")
    measured_us: float | None = Field(description="median of the trial that ran this order; null if there is none")
    trial_number: int | None


class ProcedureView(View):
    """How a time was measured."""

    l2: CacheState
    regime: Regime
    launch: LaunchStyle = Field(description="`pdl` if a run overlaps with its neighbours in the chain")
    chain_length: int = Field(description="runs per sample, by which the sample's time is divided")


class RoundView(View):
    """One interleaved sample of the candidate and of the library."""

    time_us: float
    library_us: float | None = Field(description="null for the library itself, and in trials of older versions")
    clock_mhz: int = Field(description="mean SM clock during the candidate's sample; 0 if unknown")
    library_clock_mhz: int
    kept: bool = Field(description="whether the round is valid")
    dropped: DropReason | None = Field(description="why it is invalid")

    @classmethod
    def of(cls, one: Round) -> Self:
        """Copies `one`."""
        fields = {name: getattr(one, name) for name in cls.model_fields if name != "kept"}
        return cls(kept=one.dropped is None, **fields)


class SamplesView(View):
    """All rounds of a trial in order."""

    job_id: str
    number: int
    simulated: bool
    procedure: ProcedureView | None = Field(description="null in trials of older versions")
    truncated: bool
    remark: str
    rounds: list[RoundView]

    @classmethod
    def of(cls, trial: Trial, measured: Measured, job: JobRecord) -> Self:
        """Copies `measured`, the outcome of `trial`, which belongs to `job`."""
        return cls(
            job_id=job.id,
            number=trial.number,
            simulated=is_simulated(job.spec.target_id),
            procedure=None if measured.procedure is None else ProcedureView.model_validate(measured.procedure),
            truncated=measured.truncated,
            remark=measured.remark,
            rounds=[RoundView.of(one) for one in measured.rounds],
        )
