"""Boxes of an op that leave a tensor of it out, or have one of more, are refused: the proof would not see them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.core.plan.graph.boxes import Box, BoxRead, TileSpace, along, whole
from tuner.core.plan.graph.lowering import tensors_problem
from tuner.core.problem.ops.op import Role, Tensor

SHAPE = (32, 64)
TENSORS = {"x": Role.INPUT, "it.w": Role.WEIGHT, "it.state": Role.CACHE, "it": Role.OUTPUT, "it.rest": Role.OUTPUT}
OP: Any = SimpleNamespace(
    tensors=lambda dtype: tuple(
        Tensor(name=name, shape=SHAPE, dtype="fp16", role=role) for name, role in TENSORS.items()
    )
)


def box(tensor: str, rows: int = 16) -> Box:
    """Some rows of a tensor, all columns."""
    return Box(tensor=tensor, extents=(along(0, rows * 2, rows), whole(SHAPE[1])))


def reads(*tensors: str) -> tuple[BoxRead, ...]:
    return tuple(BoxRead(box=box(tensor)) for tensor in tensors)


SPACE = TileSpace(
    name="it",
    grid=(2, 1),
    num_steps=1,
    writes=tuple(map(box, ("it", "it.rest", "it.state"))),
    reads=reads("x", "it.w", "it.state"),
)


def test_boxes_of_all_tensors_are_no_problem() -> None:
    assert tensors_problem(OP, SPACE) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reads": reads("x", "it.state")}, "it reads it.w, but its lowering reads no box of that tensor"),
        ({"reads": reads("x", "it.w")}, "it reads it.state, but its lowering reads no box of that tensor"),
        ({"writes": SPACE.writes[::2]}, "it writes it.rest, but its lowering writes no box of that tensor"),
        ({"writes": SPACE.writes[:2]}, "it writes it.state, but its lowering writes no box of that tensor"),
        ({"writes": (box("it", 8), *SPACE.writes[1:])}, "it has 2048 elements, and its tiles write 1024"),
        ({"reads": (*SPACE.reads, *reads("it.more"))}, "its lowering has a box of it.more, which is not one of its"),
        ({"writes": (*SPACE.writes, box("it.more"))}, "its lowering has a box of it.more, which is not one of its"),
        ({"writes": (*SPACE.writes, box("x"))}, "its lowering writes x, which is an input: make it an output, or a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_boxes_that_are_not_those_of_the_tensors_are_refused(changes: dict[str, Any], said: str) -> None:
    assert tensors_problem(OP, replace(SPACE, **changes)).startswith(said)
