"""An element type is a row: no code and no table beside it knows one by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tuner.core.problem.workload import Dtype

#: Where the rows are.
ROWS = "tuner/core/problem/dtype.py"
#: Names that a released format fixes: what T1 calls two element types.
FIXED = {"tuner/client/exports/t1.py"}
_NAMES = {name for dtype in Dtype for name in (str(dtype), dtype.row.array_name)}


def choices(source: str) -> Iterator[int]:
    """Lines where something is chosen by a certain element type: a key, a comparison, a case."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = list(node.elts)
        yield from (part.lineno for part in parts if part is not None and _is_dtype(part))


def _is_dtype(part: ast.expr) -> bool:
    if isinstance(part, ast.Attribute):
        return isinstance(part.value, ast.Name) and part.value.id == "Dtype"
    return isinstance(part, ast.Constant) and part.value in _NAMES


def files(*patterns: str) -> list[Path]:
    found = (path for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for path in found if str(path.relative_to(ROOT)) not in {ROWS, *FIXED})


def test_nothing_is_chosen_by_an_element_type_but_by_its_row() -> None:
    found = files("tuner/**/*.py", "workers/**/*.py")
    where = [f"{path.relative_to(ROOT)}:{line}" for path in found for line in choices(path.read_text())]
    assert where == []


@pytest.mark.parametrize(
    "source",
    [
        "SIZES = {Dtype.FP16: 2}",
        "SIZES = {'bf16': 2}",
        "is_half = dtype is Dtype.FP16",
        "is_half = dtype != 'fp16'",
        "match dtype:\n    case Dtype.BF16: ...",
        "DTYPES = ('fp16', 'bf16')",
        "NAMES = ['float16']",
    ],
)
def test_each_way_to_choose_is_seen(source: str) -> None:
    assert list(choices(source))


def test_device_code_knows_a_type_and_no_name() -> None:
    named = re.compile(r"(?i)bf16|fp16|float16|__half")
    rooms = ("workers/kernels", "tuner/ops")
    found = files(*(f"{room}/**/*.{ending}" for room in rooms for ending in ("cuh", "cu", "in")))
    assert len(found) > 50
    assert [str(path.relative_to(ROOT)) for path in found if named.search(path.read_text())] == []
