"""The common fields of requests for jobs: where and how they run, and their terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner.core.problem.workload import Workload
from tuner.core.trial.job import MAX_LABELS, MAX_PRIORITY, JobSpec, JobTerms, PriorsChoice
from tuner.errors import InvalidInput
from tuner.wire.base.fields import ONE_LINE, Strict
from tuner.wire.requests.searches import MAX_SECONDS, BudgetRequest, ObjectiveRequest, objective_of

#: Seeds must be in the range that every random generator supports.
MAX_SEED = 2**31 - 1
Label = Annotated[str, Field(min_length=1, max_length=64, pattern=ONE_LINE)]
Project = Annotated[
    str, Field(max_length=64, pattern=ONE_LINE, description="free text, e.g. the project that it belongs to")
]
PriorsName = Annotated[
    PriorsChoice,
    Field(
        strict=False,
        description=(
            "`nearest`: the search starts from results for the nearest shapes on the "
            "same GPU model; `none`: it uses no earlier results"
        ),
    ),
]
TargetId = Annotated[
    str, Field(min_length=1, max_length=100, description="a target's id, e.g. `h200` or `simulated:h200`")
]


class JobRequest(Strict):
    """The common fields of requests for one job or several."""

    target: TargetId | None = Field(default=None, description="default: the server's own")
    objective: ObjectiveRequest = ObjectiveRequest()
    budget: BudgetRequest = BudgetRequest()
    seed: int = Field(
        default=0, ge=0, le=MAX_SEED, description=("seed of the sampler, the inputs and the simulated noise")
    )
    priors: PriorsName = PriorsChoice.NEAREST
    reuse: bool = Field(default=False, description="return the best finished job of the same problem, if there is one")
    priority: int = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description=("higher priorities run first; only admins may use values above 0"),
    )
    project: Project = ""
    labels: list[Label] = Field(default=[], max_length=MAX_LABELS, description="labels for searching")
    deadline_s: float | None = Field(
        default=None, gt=0, le=MAX_SECONDS, description="seconds until its search must end, without the finals"
    )

    @property
    def terms(self) -> JobTerms:
        """The terms of the jobs."""
        return JobTerms(
            priority=self.priority, project=self.project, labels=tuple(self.labels), deadline_s=self.deadline_s
        )

    def target_id(self, default_target_id: str | None) -> str:
        """The target on which the jobs run.

        Raises:
            InvalidInput: no target is given and the server has none.
        """
        target_id = self.target or default_target_id
        if target_id is None:
            raise InvalidInput("target", "is missing, and this server has no default", "pass one, e.g. `h200`")
        return target_id

    def spec_of(self, workload: Workload, target_id: str) -> JobSpec:
        """The job for a workload."""
        return JobSpec(
            workload=workload,
            target_id=target_id,
            objective=objective_of(self.objective, workload),
            budget=self.budget.to_budget(),
            seed=self.seed,
            priors=self.priors,
            energy_within_percent=self.objective.energy_within_percent,
            torch_compile=self.objective.torch_compile,
        )
