"""Requests from clients: strict models with bounds, and their conversion to domain values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from tuner.core.problem.asked import asked_workloads
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.space.sweeps import Sweep, base_of, swept
from tuner.core.trial.job import (
    Budget,
    JobSpec,
    JobTerms,
    PriorsChoice,
)
from tuner.errors import InvalidInput
from tuner.wire.requests.given import MAX_SCHEDULES, GivenSchedule, candidates_of
from tuner.wire.requests.jobs import JobRequest
from tuner.wire.requests.misspelt import check_inputs
from tuner.wire.requests.pairs import Asked, workload_of
from tuner.wire.requests.sizes import check_size

SweepName = Annotated[Sweep, Field(strict=False)]


LLAMA_FFN = {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "dtype": "fp16"}
_OPTIONS = dict.fromkeys(("bias", "gated", "residual", "row_scale"), False)
EXAMPLES: dict[str, Any] = {
    "smallest": {"summary": "Only the pair; all other fields have defaults", "value": {"pair": LLAMA_FFN}},
    "all_fields": {
        "summary": "A feed-forward block with SiLU, with every field set",
        "value": {
            "pair": {**LLAMA_FFN, **_OPTIONS, "activation": "silu"},
            "target": "simulated:h200",
            "objective": {"l2": "cold", "regime": "burst"},
            "budget": {"trials": 60, "seconds": 600, "patience": 30},
            "seed": 0,
            "priors": "nearest",
            "reuse": True,
            "priority": -1,
            "project": "llama",
            "labels": ["nightly"],
            "deadline_s": 3600,
            "webhook": "https://ci.example/hooks/tuner",
        },
    },
    "chain": {
        "summary": "Three products: the second adds the first's output, the third normalizes the sum",
        "value": {
            "pair": {
                "kind": "chain",
                "m": 16,
                "ops": [
                    {"name": "o_proj", "source": "x", "n": 2048, "k": 2048, "residual": "stream"},
                    {"name": "up", "source": "o_proj", "norm": "o_proj", "n": 8192, "k": 2048, "activation": "silu"},
                    {"name": "down", "source": "up", "n": 2048, "k": 8192, "residual": "o_proj"},
                ],
            },
        },
    },
    **{
        name: {"summary": example.summary, "value": {"pair": {"kind": one.KIND, **example.fields}}}
        for one in asked_workloads().values()
        for name, example in one.EXAMPLES.items()
    },
}


class TuneRequest(JobRequest):
    """The body of `POST /jobs`."""

    pair: Asked
    schedules: list[GivenSchedule] = Field(
        default=[],
        max_length=MAX_SCHEDULES,
        description=(
            "the only schedules to try, besides the library; nothing is searched, and `budget.trials` is their number"
        ),
    )
    sweep: SweepName | None = Field(
        default=None,
        description=(
            "also tries all variants of the schedules, or of a chosen one, in one respect: `rasters`, "
            "`merges`, `signals`, `launches` or `shares`"
        ),
    )
    webhook: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description=("address that is notified when it ends, on an allowed host"),
    )

    @property
    def terms(self) -> JobTerms:
        """The terms of the job."""
        return replace(super().terms, webhook=self.webhook)

    def to_spec(self, default_target_id: str | None) -> JobSpec:
        """The requested job.

        Raises:
            InvalidInput: the pair is malformed or too large, or no target is given and the server has none.
        """
        target_id = self.target_id(default_target_id)
        workload = workload_of(self.pair)
        check_size("pair", self.pair, workload, target_id)
        check_inputs(workload)
        tried = self._tried(workload, target_id)
        return replace(self.spec_of(workload, target_id), budget=self._budget(len(tried)), tried=tried)

    def _tried(self, workload: Workload, target_id: str) -> tuple[Candidate, ...]:
        """The given schedules, with the variants of a sweep.

        Raises:
            InvalidInput: a schedule is not legal, or there are too many.
        """
        given = candidates_of("schedules", self.schedules, workload, target_id)
        if self.sweep is None:
            return given
        gpu, sweep = parse_target(target_id).gpu, self.sweep
        bases = given or (base_of(sweep, workload, gpu),)
        found = tuple(dict.fromkeys(one for each in bases for one in swept(sweep, workload, gpu, each)))
        if len(found) == len(bases):
            remedy = "use more rows, or a schedule with more tiles"
            raise InvalidInput("sweep", f"gives no other {sweep} for {bases[0].schedule}", remedy)
        if len(found) > MAX_SCHEDULES:
            remedy = f"pass fewer schedules: at most {MAX_SCHEDULES} are tried"
            raise InvalidInput("sweep", f"makes {len(found)} schedules", remedy)
        return found

    def _budget(self, num_tried: int) -> Budget:
        """The search's budget; if schedules are given, as many trials as there are schedules."""
        budget = self.budget.to_budget()
        return replace(budget, trials=num_tried + 1, patience=None) if num_tried else budget

    @property
    def digest(self) -> str:
        """sha256 of the canonical body, hex: equal requests have equal digests. Fields that were added later are left
        out if they have their defaults, so that digests of older bodies do not change."""
        body = self.model_dump(mode="json")
        if self.priors is PriorsChoice.NEAREST:
            del body["priors"]
        if self.objective.energy_within_percent is None:
            del body["objective"]["energy_within_percent"]
        if not self.objective.torch_compile:
            del body["objective"]["torch_compile"]
        if self.budget.patience is None:
            del body["budget"]["patience"]
        for name in ("priority", "project", "labels", "deadline_s", "webhook", "schedules", "sweep"):
            if body[name] == type(self).model_fields[name].default:
                del body[name]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
