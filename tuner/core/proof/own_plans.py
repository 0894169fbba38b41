"""The proof of a launch op: each output element is written once, or other properties that its kind proves.

A kind provides `OwnPlans` in its file ``plans``, and `LaunchesOfKind` in ``launches``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tuner.core.plan.graph.boxes import Box, BoxRead, Extent, TileSpace, whole
from tuner.core.plan.graph.lowering import limits_problem
from tuner.core.plan.op_launches import OpLaunches, check_op_launches
from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp, Role, Tensor
from tuner.core.problem.workload import Workload
from tuner.core.proof.box_coverage import check_spaces
from tuner.core.proof.run_time import check_reach
from tuner.core.schedule.codec import Frozen
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.errors import CoverageError, IllegalSchedule, WordError

#: Maximum dimensions of a tensor, as limited by a pack's index.
MOST_DIMENSIONS = 4


class OwnPlans(Protocol):
    """The module ``plans`` of a kind of launch op: it has `spaces_of`, or it proves its plans itself and has
    `check_plan` and `digest_of`."""

    def plan_of(self, op: Any, schedule: Any, gpu: Gpu) -> Any:
        """What its launches run.

        Raises:
            PlanError: the plan is refused; for kinds that prove their plans themselves.
        """

    def spaces_of(self, op: Any, schedule: Any, plan: Any) -> Sequence[TileSpace]:
        """The boxes that tasks write and read, for each of its launches in order. They are checked here against the
        op's tensors."""

    def check_plan(self, op: Any, schedule: Any, plan: Any) -> None:
        """Checks a plan, and again before it is launched.

        Raises:
            PlanError: the plan is not valid.
        """

    def digest_of(self, plan: Any, schedule: Any) -> str:
        """Digest of everything that was proven."""


class LaunchesOfKind(Protocol):
    """The module ``launches`` of a kind of launch op."""

    def launches_of(self, op: Any, schedule: Any, plan: Any, workload: Workload) -> OpLaunches:
        """The launches, with all arguments."""

    def report_of(self, words: Sequence[int]) -> str:
        """What a launch has reported in the status words of its workspace, which are unsigned: invalid inputs, or an
        expired wait; empty if nothing. Required if the launches have status words."""


def proven_plan(workload: Workload, op: LaunchOp, schedule: LaunchOpSchedule, gpu: Gpu) -> Any:
    """The plan for the op's launches.

    Raises:
        IllegalSchedule: its kind does not define plans.
        PlanError: the plan is refused.
    """
    plans = _part(op, "plans")
    plan = plans.plan_of(op, schedule, gpu)
    if not hasattr(plans, "check_plan"):
        check_own_plan(workload, op, schedule, plan)
    return plan


def check_own_plan(workload: Workload, op: LaunchOp, schedule: LaunchOpSchedule, plan: Any) -> None:
    """Checks that a plan is valid, in its current state.

    Raises:
        IllegalSchedule: its kind does not define plans, or does not define what they write.
        PlanError: the plan is not valid.
    """
    plans = _part(op, "plans")
    if hasattr(plans, "check_plan"):
        plans.check_plan(op, schedule, plan)
        return
    if not hasattr(plans, "spaces_of"):
        raise IllegalSchedule(
            f"{op.describe()}: its kind's plans have no spaces_of, so nothing about them can be proven"
        )
    try:
        spaces = tuple(plans.spaces_of(op, schedule, plan))
    except ValueError as error:  # raised by `TileSpace` and `Extent` for invalid values
        raise CoverageError("boxes or run-time inputs are invalid", str(error)) from error
    _check_boxes(op.tensors(workload.dtype), spaces)
    launches_for(workload, op, schedule, plan)


def own_digest(workload: Workload, op: LaunchOp, schedule: LaunchOpSchedule, plan: Any) -> str:
    """sha256, hex, of the launches' arguments and of what was proven about them."""
    plans = _part(op, "plans")
    if hasattr(plans, "digest_of"):
        return str(plans.digest_of(plan, schedule))
    launched = launches_for(workload, op, schedule, plan).digest
    facts = f"{op.to_json()} {workload.dtype} {Frozen(schedule)!r} {_plain(plan)} {launched}"
    return hashlib.sha256(facts.encode()).hexdigest()


def _plain(value: Any) -> str:
    """A complete text of a plan, whose arrays `repr` would truncate."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if is_dataclass(value) and not isinstance(value, type):
        return str({field.name: _plain(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, tuple | list):
        return str([_plain(one) for one in value])
    return repr(value)


def launches_for(workload: Workload, op: LaunchOp, schedule: LaunchOpSchedule, plan: Any) -> OpLaunches:
    """The launches of a plan, checked.

    Raises:
        IllegalSchedule: the op's kind does not define launches.
        ResourceError, WordError: see `check_op_launches`.
    """
    part = _part(op, "launches")
    found: OpLaunches = part.launches_of(op, schedule, plan, workload)
    if found.status_words and not hasattr(part, "report_of"):
        raise WordError("nothing reads the status words of a launch", f"{op.name}: add report_of to launches.py")
    own = op.tensors(workload.dtype)
    check_tensors(op, own)
    written = [tensor.name for tensor in own if tensor.role is Role.OUTPUT]
    asked = (f"{one.name}.w" for one in workload.tile_ops)  # weights of other ops may be prefetched
    check_op_launches(found, op.name, {*(tensor.name for tensor in own), *asked}, written)
    return found


def check_tensors(op: LaunchOp, tensors: Sequence[Tensor]) -> None:
    """Checks that launches, artifacts and packs can name an op's tensors.

    Raises:
        WordError: they cannot, with the tensor's name.
    """
    outputs = {tensor.name for tensor in tensors if tensor.role is Role.OUTPUT}
    if op.name not in outputs:
        raise WordError("an op has no output", f"no tensor of {op.name} is an output with its name")
    names = [tensor.name for tensor in set(tensors)]  # a tensor that is read twice counts once
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WordError("two tensors have the same name", f"{op.name}: {twice[0]}")
    for tensor in tensors:
        if tensor.dtype not in ELEMENTS:
            known = ", ".join(ELEMENTS)
            raise WordError("a tensor has an unknown element type", f"{tensor.name} is {tensor.dtype!r}, use {known}")
        if not 1 <= len(tensor.shape) <= MOST_DIMENSIONS or min(tensor.shape) < 1:
            what = f"{tensor.name} is {list(tensor.shape)}, use 1 to {MOST_DIMENSIONS} dimensions, none of them empty"
            raise WordError("a tensor has another shape", what)


def _part(op: LaunchOp, name: str) -> Any:
    if (part := part_of(op.KIND, name)) is None:
        raise IllegalSchedule(f"{op.describe()}: its kind has no file {name!r}, so it cannot be launched")
    return part


@lru_cache(maxsize=256)
def _check_boxes(tensors: tuple[Tensor, ...], spaces: tuple[TileSpace, ...]) -> None:
    """Checks that boxes are within their tensors, no element is written twice, and all outputs are written completely.

    Raises:
        CoverageError: this does not hold, with a tile and its box.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    for space in spaces:
        if problem := limits_problem(space, tensors):
            raise CoverageError("a run-time input has another range than its tensor", f"{space.name}: {problem}")
        for box in (*space.writes, *(read.box for read in space.reads)):
            if box.tensor in by_name:
                _check_within(space, box, by_name[box.tensor])
    outputs = [tensor for tensor in tensors if tensor.role is Role.OUTPUT]
    written = {box.tensor for space in spaces for box in space.writes}
    if missing := [tensor.name for tensor in outputs if tensor.name not in written]:
        raise CoverageError("an output is not written", f"{missing[0]}: no task writes a box of it")
    _check_order(spaces, {tensor.name for tensor in tensors if tensor.role is Role.CACHE})
    check_spaces((*spaces, _caller(outputs)))
    for space in spaces:
        check_reach(space)


def _check_order(spaces: Sequence[TileSpace], in_place: Collection[str]) -> None:
    """Checks that a launch reads only what earlier launches have written; data changed in place is read by the task
    itself."""
    for number, space in enumerate(spaces):
        behind = {box.tensor for other in spaces[number:] for box in other.writes} - set(in_place)
        if early := sorted({read.box.tensor for read in space.reads} & behind):
            raise CoverageError("a launch reads what has not been written", f"{space.name} reads {early[0]}")


def _check_within(space: TileSpace, box: Box, tensor: Tensor) -> None:
    if len(box.extents) != len(tensor.shape):
        dims = f"{len(box.extents)} dimensions, but {tensor.name} has {len(tensor.shape)}"
        raise CoverageError("a box does not have its tensor's dimensions", f"{space.name}'s has {dims}")
    for dim, (extent, size) in enumerate(zip(box.extents, tensor.shape, strict=True)):
        if (beyond := _largest(extent)) > size:
            raise CoverageError(
                "a box lies outside its tensor",
                f"{space.name} reaches {beyond} along dimension {dim} of {tensor.name}, which has {size}",
            )


def _largest(extent: Extent) -> int:
    return int(np.max(extent.end, initial=0))


def _caller(outputs: Sequence[Tensor]) -> TileSpace:
    """The caller as a reader: it reads all outputs of the op."""
    reads = tuple(BoxRead(box=Box(tensor=tensor.name, extents=tuple(map(whole, tensor.shape)))) for tensor in outputs)
    return TileSpace(name="the caller", grid=(1, 1), num_steps=1, writes=(), reads=reads)
