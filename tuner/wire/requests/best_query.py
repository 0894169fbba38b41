"""The query of `GET /best`: its parameters describe the requested result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from tuner.core.problem.asked import AskedWorkload, asked_workloads, document_of, is_listed, names_in, parameter_names
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.codec import fields_of, hints_of
from tuner.core.problem.workload import Workload
from tuner.core.trial.job import CacheState, Regime
from tuner.core.trial.questions import DEFAULT_MAX_DISTANCE, Machine, Question
from tuner.core.trial.records import MatchKind
from tuner.errors import InvalidInput
from tuner.wire.base.fields import SIZES
from tuner.wire.base.models import bounds_of, type_of
from tuner.wire.requests.jobs import TargetId
from tuner.wire.requests.pairs import model_of, workload_of
from tuner.wire.requests.problems import of_validation
from tuner.wire.requests.searches import objective_for

#: Larger than the distance of any two shapes.
MAX_DISTANCE = 6 * 31.0
Fact = Annotated[str, Field(min_length=1, max_length=100)]
MatchName = Annotated[MatchKind, Field(description="the weakest acceptable match")]


class _Question(BaseModel):
    """The fields of the query besides the workload's."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: str
    dtype: Dtype = Field(default=Dtype.FP16, description="element type of every tensor")
    target: TargetId | None = Field(default=None, description="default: the server's own")
    l2: CacheState = Field(default=CacheState.COLD, description="content of the L2 when a sample starts")
    regime: Regime | None = Field(default=None, description="default: sustained from 256 rows or images on")
    match: MatchName = MatchKind.EXACT
    max_distance: float = Field(
        default=DEFAULT_MAX_DISTANCE,
        ge=0,
        le=MAX_DISTANCE,
        description=(
            "how different the shape of a weaker match may be: log2 of the ratios of m, n and k of both "
            "products, summed"
        ),
    )
    gpu_name: Fact | None = Field(default=None, description="the GPU that will run the kernel, e.g. `NVIDIA H200`")
    driver: Fact | None = Field(default=None, description="its driver")
    cuda: Fact | None = Field(default=None, description="its CUDA version")
    kernel_version: Fact | None = Field(default=None, description="the digest of the requested kernel sources")

    def to_question(self, default_target_id: str | None) -> Question:
        """What is requested.

        Raises:
            InvalidInput: a parameter of the pair is wrong, or no target is given and the server has none.
        """
        target_id = self.target or default_target_id
        if target_id is None:
            raise InvalidInput("target", "is missing, and this server has no default", "pass one, e.g. `h200`")
        workload = self.to_workload()
        return Question(
            workload=workload,
            target_id=target_id,
            objective=objective_for(self.l2, self.regime, workload),
            machine=Machine(
                gpu_name=self.gpu_name, driver=self.driver, cuda=self.cuda, kernel_version=self.kernel_version
            ),
            match=self.match,
            max_distance=self.max_distance,
        )

    def to_workload(self) -> Workload:
        """The requested pair.

        Raises:
            InvalidInput: a parameter of the pair is missing, or belongs to a different kind.
        """
        one = asked_workloads()[self.kind]
        called = parameter_names(one)
        for field in fields_of(one):
            if field.default is MISSING and getattr(self, name := called[field.name]) is None:
                raise InvalidInput(name, f"is missing, but required for a pair of kind {self.kind}", f"add `{name}=…`")
        for name in sorted(_SPELLED.keys() - called.values()):
            if getattr(self, name) is not None:
                raise InvalidInput(name, f"is not a parameter for a pair of kind {self.kind}", "remove it")
        try:
            pair = model_of(one).model_validate(document_of(one, dict(self)))
        except ValidationError as error:
            first = of_validation(error.errors()[0])
            named = first.field.partition(".")[0]  # a parameter may consist of several numbers
            raise InvalidInput(called.get(named, named), first.problem, first.remedy) from error
        return workload_of(pair)


def _spelled(kinds: Mapping[str, type[AskedWorkload]]) -> dict[str, Any]:
    """A parameter for each field that any kind has, with its meaning for each of these kinds."""
    types: dict[str, list[Any]] = {}
    words: dict[str, dict[str, list[str]]] = {}
    for kind, one in kinds.items():
        called, own = parameter_names(one), {field.name: field for field in fields_of(one)}
        for field, name in called.items():
            types.setdefault(name, []).append(_parameter(hints_of(one)[field], own[field]))
            words.setdefault(name, {}).setdefault(own[field].metadata.get("doc", ""), []).append(kind)
    return {
        name: (
            Union[(*dict.fromkeys(types[name]), None)],
            Field(default=None, description="; ".join(f"{', '.join(of)}: {doc}" for doc, of in words[name].items())),
        )
        for name in types
    }


def _parameter(hint: Any, field: dataclasses.Field[Any]) -> Any:
    """The type of a parameter; several numbers are a comma-separated list."""
    if is_listed(hint):
        return Annotated[str, Field(pattern=SIZES, description=f"{','.join(names_in(hint))}")]
    bounds = bounds_of(field)
    return Annotated[type_of(hint), Field(**bounds)] if bounds else type_of(hint)


_SPELLED = _spelled(asked_workloads())
if TYPE_CHECKING:
    BestQuery = _Question
else:
    BestQuery = create_model(
        "BestQuery",
        __base__=_Question,
        __doc__="The query of `GET /best`: a workload, given by the parameters of its kind, and a target.",
        kind=(
            Literal[tuple(asked_workloads())],
            Field(default="ffn", description="the parameters that describe the workload"),
        ),
        **_SPELLED,
    )
