"""Requests for batches."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import Field

from tuner.core.problem import asked
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.trial.job import JobSpec
from tuner.core.trial.ladders.batch import MAX_JOBS
from tuner.errors import InvalidInput
from tuner.wire.base.fields import Size
from tuner.wire.requests.jobs import JobRequest
from tuner.wire.requests.misspelt import check_inputs
from tuner.wire.requests.pairs import Asked, FfnShape, workload_of
from tuner.wire.requests.searches import MAX_TRIALS
from tuner.wire.requests.sizes import check_size

MAX_SHAPES = 64
RowCounts = Annotated[list[Size], Field(min_length=1, max_length=MAX_JOBS, description="numbers of rows, one job each")]

EXAMPLES: dict[str, Any] = {
    "ladder": {
        "summary": "One feed-forward block at several numbers of rows",
        "value": {"shapes": [{"d_in": 4096, "d_hidden": 14336, "d_out": 4096, "m": [1, 2, 4, 8, 16, 32, 64]}]},
    },
    "list": {
        "summary": "Any list of pairs",
        "value": {
            "pairs": [
                {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096},
                {
                    "kind": "independent",
                    "first": {"m": 512, "n": 4096, "k": 4096},
                    "second": {"m": 512, "n": 1024, "k": 4096},
                },
            ],
            "budget": {"trials": 40},
        },
    },
}


class LadderShape(FfnShape):
    """An FFN, and the rows to tune it for."""

    m: RowCounts

    def to_workloads(self) -> list[Workload]:
        """The pair of ops for each number of rows."""
        return [asked.workload_of({"kind": WorkloadKind.FFN, **self.model_dump(), "m": m}) for m in self.m]


class BatchRequest(JobRequest):
    """The body of `POST /batches`."""

    shapes: list[LadderShape] = Field(
        default=[], max_length=MAX_SHAPES, description="FFNs, each with the numbers of rows to tune it for"
    )
    pairs: list[Asked] = Field(default=[], max_length=MAX_JOBS, description="pairs as in a job, one job each")
    neighbour_trials: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TRIALS,
        description="`budget.trials` of jobs that start from results of their ladder's other jobs; default: a third",
    )

    @property
    def digest(self) -> str:
        """sha256 of the canonical body, hex."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def to_specs(self, default_target_id: str | None) -> list[JobSpec]:
        """The requested jobs.

        Raises:
            InvalidInput: nothing is requested, a pair is malformed or too large, or there is no target.
        """
        target_id = self.target_id(default_target_id)
        workloads = self._workloads(target_id)
        if not workloads:
            raise InvalidInput("shapes", "is empty, and so is pairs", "add a shape with its m, or a pair")
        return [self.spec_of(workload, target_id) for workload in workloads]

    def _workloads(self, target_id: str) -> list[Workload]:
        """The requested workloads, each once."""
        named = [
            (f"shapes.{index}.m.{row}", workload)
            for index, shape in enumerate(self.shapes)
            for row, workload in enumerate(_ladder(index, shape, target_id))
        ]
        named += [(f"pairs.{index}", _checked(index, pair, target_id)) for index, pair in enumerate(self.pairs)]
        first = dict[Workload, str]()
        for field, workload in named:
            if workload in first:
                problem = f"asks for {workload.describe()}, as {first[workload]} already does"
                raise InvalidInput(field, problem, "request each problem once")
            first[workload] = field
        return list(first)


def _ladder(index: int, shape: LadderShape, target_id: str) -> list[Workload]:
    try:
        workloads = shape.to_workloads()
    except InvalidInput as error:
        raise InvalidInput(f"shapes.{index}", f"{error.field}: {error.problem}", error.remedy) from error
    for workload in workloads:
        check_size(f"shapes.{index}", shape, workload, target_id)
    return workloads


def _checked(index: int, pair: Any, target_id: str) -> Workload:
    try:
        workload = workload_of(pair)
        check_size("pair", pair, workload, target_id)
        check_inputs(workload)
        return workload
    except InvalidInput as error:
        field = f"pairs.{index}{error.field.removeprefix('pair')}"
        raise InvalidInput(field, error.problem, error.remedy) from error
