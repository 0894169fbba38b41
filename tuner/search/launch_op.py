"""What a search knows of a kind of launch op: one record a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AroundOp
from tuner.search.attention_axes import kernel_features, plan_features
from tuner.search.attention_priors import adapt_attention, attention_distance
from tuner.search.attention_seeds import attention_beside, attention_guesses


@dataclass(frozen=True, kw_only=True)
class LaunchOpSearch:
    """How a search begins with an op of a kind, and how it compares schedules of it."""

    #: First guesses of the whole workload, given those of its tile ops.
    guesses: Callable[[AroundOp, Iterator[Schedule]], Iterator[Schedule]]
    #: The op's first guess in front of that schedule of tile ops; None where nothing is legal.
    first: Callable[[AroundOp, Schedule | None], AttentionSchedule | None]
    #: What was found for another op of the kind, as it suits this one; None where nothing like it is legal.
    adapt: Callable[[AroundOp, AttentionSchedule, AttentionOp], AttentionSchedule | None]
    #: How alike two workloads' ops of the kind are: 0 for the same, infinity where one teaches nothing of the other.
    distance: Callable[[Sequence[AttentionOp], Sequence[AttentionOp]], float]
    #: For the model: what is compiled, and what a launch is told.
    compiled_features: Callable[[AttentionSchedule], list[float]]
    plan_features: Callable[[AttentionSchedule, AttentionOp, Gpu], list[float]]


#: By the class of the op.
_SEARCHES = {
    AttentionOp: LaunchOpSearch(
        guesses=attention_guesses,
        first=attention_beside,
        adapt=adapt_attention,
        distance=attention_distance,
        compiled_features=kernel_features,
        plan_features=plan_features,
    )
}


def search_of(op: AttentionOp) -> LaunchOpSearch:
    """The record of the op's kind."""
    return _SEARCHES[type(op)]


def distance_of(ops: Sequence[AttentionOp], others: Sequence[AttentionOp]) -> float:
    """How alike the launch ops of two workloads are, as `LaunchOpSearch.distance`."""
    return search_of(ops[0]).distance(ops, others) if ops else (float("inf") if others else 0.0)
