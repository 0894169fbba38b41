"""Which tests are those of one kind of op, and a run of all others in a tree without its folder.

``python -m tests.house.without attention [pytest's arguments]`` copies what git has, leaves ``tuner/ops/attention``
out, and runs there what is left. As a plugin of pytest this leaves out the tests of the kind in `KIND`.

A test is a kind's where its file imports the kind, itself or by what it imports, or where the test names it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.house.kinds import kinds, names_of, texts
from tests.support.repository import ROOT
from tests.support.subtracted import without_kind
from tuner.core.problem.op_kinds import op_kinds

#: Of the environment: the kind that is not there.
KIND = "TUNER_WITHOUT_KIND"
#: Whose imports are followed.
_OURS = ("tests", "benchmarks")
_OUTCOMES = Counter[str]()


def is_of(kind: str, module: str) -> bool:
    """Whether a module of the tests imports the kind when it is imported."""
    return any(one == f"tuner.ops.{kind}" or one.startswith(f"tuner.ops.{kind}.") for one in _all_imports(module))


def names(kind: str, function: ast.AST) -> bool:
    """Whether a test names it: in its body, its parameters, or what it is parametrized with."""
    return any(names_of(text, (kind,)) for text in texts(function))


@cache
def _all_imports(module: str) -> frozenset[str]:
    found, ahead = set[str](), [module]
    while ahead:
        for one in _imports(ahead.pop()) - found:
            found.add(one)
            ahead += [one] * one.startswith(_OURS)
    return frozenset(found)


@cache
def _imports(module: str) -> frozenset[str]:
    """What a module imports at once, with the packages around it."""
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if not file.exists():
        return frozenset()
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    return frozenset(_imported(ast.parse(file.read_text(encoding="utf-8")).body, package))


def _imported(statements: list[ast.stmt], package: list[str]) -> Iterator[str]:
    for one in statements:
        match one:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                around = package[: len(package) - level + 1] if level else []
                name = ".".join([*around, *([module] if module else [])])
                yield from (name, *(f"{name}.{alias.name}" for alias in aliases))
            case ast.Try(body=body):
                yield from _imported(body, package)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A file that imports the kind cannot be imported without it."""
    if collection_path.suffix != ".py" or not is_of(os.environ[KIND], _module_of(collection_path)):
        return None
    _OUTCOMES["files"] += collection_path.name.startswith("test_")
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that name it are left out, and counted."""
    own = {id(item) for item in items if isinstance(item, pytest.Function) and _is_named_in(os.environ[KIND], item)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in own])
    items[:] = [item for item in items if id(item) not in own]
    _OUTCOMES["named"], _OUTCOMES["others"] = len(own), len(items)


def _is_named_in(kind: str, item: pytest.Function) -> bool:
    if names_of(item.name, (kind,)):
        return True
    tree = _defined(item.path)
    ahead, seen = [*item.fixturenames, item.function.__name__], set[str]()
    while ahead:
        if (name := ahead.pop()) in tree and name not in seen:
            seen.add(name)
            if names(kind, tree[name]):
                return True
            # What it uses of its file: a program that a process runs is a constant there.
            ahead += [one.id for one in ast.walk(tree[name]) if isinstance(one, ast.Name)]
    return False


@cache
def _defined(path: Path) -> dict[str, ast.AST]:
    """What a file defines, by name."""
    found: dict[str, ast.AST] = {}
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = one
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = one
    return found


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of xdist hands its numbers on: each collects all."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["without"] = dict(_OUTCOMES)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The numbers of such a process."""
    _OUTCOMES.update(node.workeroutput["without"] if not _OUTCOMES else {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many are whose."""
    kind, found = os.environ[KIND], _OUTCOMES
    of_kind = f"{found['files']} files that import it and {found['named']} tests that name it"
    terminalreporter.write_line(f"without {kind}: left out {of_kind}; the others are {found['others']}")


def main(kind: str, *arguments: str) -> int:
    """Runs them; pytest's exit status, or why they cannot run."""
    if kind not in kinds():
        sys.exit(f"{kind!r} is no kind of op: tuner/ops has {', '.join(kinds())}")
    if op_kinds()[kind].is_unnamed:
        sys.exit(
            f"{kind} cannot be left out: an op that JSON gives no kind is one of it, so the two products of every pair "
            "are, and the service takes no workload without it"
        )
    with tempfile.TemporaryDirectory() as folder:
        tree = without_kind(kind, Path(folder), places=["."])
        env, python = os.environ | {"PYTHONPATH": str(tree), KIND: kind}, (sys.executable, "-m")
        # The client's documents are written from the kinds that are there.
        subprocess.run([*python, "tests.house.documents"], cwd=tree, env=env, check=True)
        call = [*python, "pytest", "-p", "tests.house.without", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(call, cwd=tree, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
