"""A new element type is a row in each table, and no code takes it for an old one."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.repository import ROOT
from tuner.core.problem.workload import Dtype


def tables_by_dtype() -> list[tuple[str, set[str]]]:
    """Every dict that is written with element types as its keys: where it stands, and which it has."""
    found = []
    for path in sorted(path for folder in ("tuner", "workers") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                keys = {key.attr for key in node.keys if isinstance(key, ast.Attribute) and _is_dtype(key)}
                if keys:
                    found.append((f"{Path(path).relative_to(ROOT)}:{node.lineno}", keys))
    return found


def _is_dtype(key: ast.Attribute) -> bool:
    return isinstance(key.value, ast.Name) and key.value.id == "Dtype"


def test_every_table_of_element_types_has_all_of_them() -> None:
    assert len(tables_by_dtype()) >= 8
    assert [where for where, keys in tables_by_dtype() if keys != {dtype.name for dtype in Dtype}] == []


def test_no_branch_takes_a_new_element_type_for_an_old_one() -> None:
    """A table or a `match` fails for what it does not know; `is` and `else` would not."""
    pattern = ("is Dtype.", "== Dtype.", "is not Dtype.", "!= Dtype.")
    files = sorted(path for folder in ("tuner", "workers") for path in (ROOT / folder).rglob("*.py"))
    assert [str(path.relative_to(ROOT)) for path in files if any(p in path.read_text() for p in pattern)] == []
