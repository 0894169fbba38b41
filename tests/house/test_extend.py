"""Packages import one module, which defines all its names and loads nothing by itself."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.toys import TOYS, run
from tuner import extend

_NEEDS_A_CARD = "tuner.workers.gpu"


def _imports(tree: ast.AST) -> list[tuple[str, str, str]]:
    """The imports of a file: module, name in the module, local name."""
    return [
        (one.module or "", alias.name, alias.asname or alias.name)
        for one in ast.walk(tree)
        if isinstance(one, ast.ImportFrom) and not one.level
        for alias in one.names
    ]


@pytest.mark.parametrize("path", sorted(TOYS.rglob("*.py")), ids=lambda path: str(path.relative_to(TOYS)))
def test_a_package_of_the_tests_imports_that_module_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {module for module, _, _ in _imports(tree) if module.partition(".")[0] == "tuner"}
    named = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert ours <= {extend.__name__}
    assert not any(name.partition(".")[0] == "tuner" for name in named)


def test_editors_see_the_names_that_are_there_and_each_is_where_it_is_said_to_be() -> None:
    said = {
        (module, there, name)
        for module, there, name in _imports(ast.parse((ROOT / "tuner/extend.py").read_text(encoding="utf-8")))
        if module.startswith("tuner.")
    }
    listed = {(module, name, name) for name, module in extend._FOUND.items()}
    assert said == {one for one in listed if not one[0].startswith(_NEEDS_A_CARD)}
    for module, there, name in said:
        assert getattr(extend, name) is getattr(import_module(module), there), name
    with pytest.raises(AttributeError, match="'Tyle': it has LaunchTimeline, "):
        extend.Tyle  # noqa: B018


def test_it_loads_nothing_by_itself() -> None:
    assert run("import sys, tuner.extend\nprint(sorted(x for x in sys.modules if x.startswith('tuner.')))").strip() == (
        "['tuner.extend']"
    )
