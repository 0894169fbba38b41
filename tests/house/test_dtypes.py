"""An element type is one table row, and so is a weight format: no other code or table names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Dtype

#: The files with the rows.
ROWS = ("tuner/core/problem/dtype.py", "tuner/core/problem/weights/")
#: Files in which these names belong to released formats: T1, and checkpoints.
WORDS = ("tuner/client/exports/t1.py", "tuner/core/problem/quantisation/")
_NAMES = {name for dtype in Dtype for name in (str(dtype), dtype.row.array_name)} | {str(one) for one in WeightFormat}
#: Minimum letters of a name's prefix; fewer are ambiguous.
_FEWEST = 3


def choices(source: str, names: Collection[str] = _NAMES) -> Iterator[int]:
    """Lines that depend on a specific element type: a key, a comparison, a case."""
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
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            yield from (part.lineno for part in node.args if _is_beginning(part, names))
        yield from (part.lineno for part in parts if part is not None and _is_dtype(part, names))


def _is_dtype(part: ast.expr, names: Collection[str]) -> bool:
    if isinstance(part, ast.Attribute):
        return isinstance(part.value, ast.Name) and part.value.id in ("Dtype", "WeightFormat")
    return isinstance(part, ast.Constant) and part.value in names


def _is_beginning(part: ast.expr, names: Collection[str]) -> bool:
    text = part.value if isinstance(part, ast.Constant) else None
    return isinstance(text, str) and len(text) >= _FEWEST and any(name.startswith(text) for name in names)


def files(*patterns: str) -> list[Path]:
    found = (path for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for path in found if not str(path.relative_to(ROOT)).startswith(ROWS))


@pytest.mark.slow
def test_nothing_is_chosen_by_an_element_type_but_by_its_row() -> None:
    found = files("tuner/**/*.py", "workers/**/*.py")
    named = re.compile(r"startswith|\b(Dtype|WeightFormat)\b|" + "|".join(map(re.escape, _NAMES)))
    places = ((str(path.relative_to(ROOT)), text) for path in found if named.search(text := path.read_text()))
    chosen = ((place, choices(text, () if place.startswith(WORDS) else _NAMES)) for place, text in places)
    assert [f"{place}:{line}" for place, lines in chosen for line in lines] == []


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
        "is_four = stored is WeightFormat.MXFP4",
        "is_four = stored == 'int4_g128'",
        "is_four = stored.startswith('int4')",
    ],
)
def test_each_way_to_choose_is_seen(source: str) -> None:
    assert list(choices(source))


def test_device_code_knows_a_type_and_no_name() -> None:
    named = re.compile(r"(?i)bf16|fp16|float16|__half|e4m3|int4_|mxfp|e2m1")
    rooms = ("workers/kernels", "tuner/ops")
    found = files(*(f"{room}/**/*.{ending}" for room in rooms for ending in ("cuh", "cu", "in")))
    assert len(found) > 50
    assert [str(path.relative_to(ROOT)) for path in found if named.search(path.read_text())] == []
