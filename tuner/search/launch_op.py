"""How a search treats a kind of launch op: one record per kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AroundOp
from tuner.errors import NotFound


@dataclass(frozen=True, kw_only=True)
class LaunchOpSearch:
    """How a search starts with an op of a kind, and how it compares schedules of the op."""

    #: First guesses for the whole workload, given those for its tile ops.
    guesses: Callable[[AroundOp, Iterator[Schedule]], Iterator[Schedule]]
    #: The op's first guess in front of a given schedule of tile ops; None if nothing is legal.
    first: Callable[[AroundOp, Schedule | None], Any | None]
    #: Adapts a result for another op of the kind to this op; None if nothing similar is legal.
    adapt: Callable[[AroundOp, Any, Any], Any | None]
    #: The distance between two workloads' ops of the kind: 0 if they are equal, infinity if nothing can be learned from
    #: one about the other.
    distance: Callable[[Sequence[Any], Sequence[Any]], float]
    #: For the model: features of what is compiled, and features of launch arguments.
    compiled_features: Callable[[Any], list[float]]
    plan_features: Callable[[Any, Any, Gpu], list[float]]


class SearchOfKind(Protocol):
    """The module ``search`` of a kind of launch op."""

    SEARCH: LaunchOpSearch


def search_of(op: LaunchOp) -> LaunchOpSearch:
    """The record of the op's kind: `SEARCH` in its module ``search``.

    Raises:
        NotFound: the kind has no such record.
    """
    part = part_of(op.KIND, "search")
    if part is None:
        raise NotFound(f"{op.describe()}: its kind does not define how to search its schedules")
    found: LaunchOpSearch = part.SEARCH
    return found


def distance_of(ops: Sequence[LaunchOp], others: Sequence[LaunchOp]) -> float:
    """The distance between two workloads' launch ops, as defined by `LaunchOpSearch.distance`."""
    return search_of(ops[0]).distance(ops, others) if ops else (float("inf") if others else 0.0)
