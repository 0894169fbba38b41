"""Selects the tests of one op kind, and runs all others in a tree without the kind's folder.

``python -m tests.house.without attention [pytest's arguments]`` copies all files that git tracks except
``tuner/ops/attention``, and runs the remaining tests there. As a pytest plugin, this module deselects the tests of the
kind in `KIND`.

Names that come from the removed kind are bound to `Absent` in test files. A test belongs to the kind if its file does,
if it names the kind or a request of it, or if it uses a name that belongs to the kind: one imported from the kind's
folder, or a helper that names the kind or uses such a name. A case of a test belongs to the kind if one of its values
is absent, names the kind, or contains such a value.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from _pytest.compat import NOTSET

from tests.house.kinds import kinds, names_of, texts
from tests.support.repository import ROOT
from tests.support.subtracted import without_kind
from tuner.core.problem.asked import asked_workloads
from tuner.core.problem.op_kinds import op_kinds

#: Environment variables: the missing kind, and a line for each name in its requests.
KIND, REQUESTS = "TUNER_WITHOUT_KIND", "TUNER_WITHOUT_REQUESTS"
#: Modules that may import the kind, and whose imports are followed.
_OURS = ("tests.", "benchmarks.")
_OUTCOMES = Counter[str]()
#: Files that cannot be imported without the kind.
_FILES: list[str] = []


class Absent:
    """Stands in for any name of a kind that was removed: everything derived from it during import is absent, too."""

    __name__ = "tests.absent"

    def __init__(self, *_: Any, **__: Any) -> None:
        """Accepts any arguments."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def _self(self, *_: Any, **__: Any) -> Any:
        return self

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Absent,)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, _: object) -> bool:
        return False

    __call__ = __getitem__ = __add__ = __radd__ = __or__ = __ror__ = __sub__ = __mul__ = __mod__ = __truediv__ = _self


def holds(kind: str, value: Any, depth: int = 6) -> bool:
    """Whether a value is absent, names the kind, or contains such a value."""
    inner: list[Any] = []
    match value:
        case Absent():
            return True
        case type():
            return issubclass(value, Absent)
        case FunctionType():
            return any(is_own(kind, value.__module__, one) for one in value.__code__.co_names)
        case str():
            return says(kind, value)
        case bytes():
            return says(kind, value.decode("latin-1"))
        case Mapping():
            inner = [*value, *value.values()]
        case tuple() | list() | set() | frozenset():
            inner = [*value]
        case _ if is_dataclass(value):
            inner = [getattr(value, one.name, None) for one in fields(value)]
    return depth > 0 and any(holds(kind, one, depth - 1) for one in inner)


def says(kind: str, text: str) -> bool:
    """Whether a text names the kind or a request of it."""
    return bool(names_of(text, (kind,))) or any(one in _plain(text) for one in _requests())


def requests_of(kind: str) -> list[str]:
    """The names that clients use for the workloads of a kind, in JSON and in the form."""
    brought = (one for one in asked_workloads().values() if _is_of(kind, one.__module__))
    return sorted({_plain(name) for one in brought for name in (one.KIND, *one.CHOICES)})


@cache
def _requests() -> list[str]:
    return os.environ.get(REQUESTS, "").split()


def _plain(text: str) -> str:
    """Normalises ``decoder layer`` and ``DECODER_LAYER`` to ``decoder-layer``."""
    return text.lower().replace(" ", "-").replace("_", "-")


def is_own(kind: str, module: str, name: str) -> bool:
    """Whether a name in one of our modules belongs to the kind or needs something that does."""
    seen, ahead = set[tuple[str, str]](), [(module, name)]
    while ahead:
        if (one := ahead.pop()) not in seen:
            seen.add(one)
            if _is_itself(kind, *one):
                return True
            ahead += _used(*one)
    return False


@cache
def _is_itself(kind: str, module: str, name: str) -> bool:
    """Whether the definition names the kind, directly or by what it uses. The parameters of a test are ignored: its
    cases are judged one by one."""
    match _defined(module).get(name):
        case str(place):
            return _is_of(kind, place)
        case ast.Assign() | ast.AnnAssign():
            return holds(kind, getattr(sys.modules.get(module), name, None))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as found:
            spelled = (text for part in _parts(found) for text in texts(part))
            return any(says(kind, text) for text in (found.name, *spelled))
    return False


@cache
def _used(module: str, name: str) -> frozenset[tuple[str, str]]:
    """The names from our modules that a definition uses, with their modules; a test names its fixtures as
    parameters."""
    defined, used = _defined(module), set[tuple[str, str]]()
    match defined.get(name):
        case str(place) if place.startswith(_OURS):
            around, _, there = place.rpartition(".")
            return frozenset({(around, there)})
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as found:
            for node in (one for part in _parts(found) for one in ast.walk(part)):
                match node:
                    case ast.Attribute(value=ast.Name(id=of), attr=attribute) if isinstance(defined.get(of), str):
                        used.add((defined[of], attribute))
                    case ast.Name(id=of) | ast.arg(arg=of) if of in defined:
                        used.add((module, of))
    return frozenset(used)


def _parts(found: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.AST]:
    return [one for one in ast.iter_child_nodes(found) if one not in found.decorator_list]


@cache
def _defined(module: str) -> Mapping[str, Any]:
    """The definitions of one of our modules by name, and the origins of its imports."""
    found: dict[str, Any] = {}
    for one in _statements(module):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = one
            case ast.Assign(targets=targets):
                given = (part for target in targets for part in ast.walk(target))
                found |= {part.id: one for part in given if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = one
            case ast.Import(names=aliases):
                found |= {alias.asname: alias.name for alias in aliases if alias.asname}
            case ast.ImportFrom(module=place, names=aliases, level=0):
                found |= {alias.asname or alias.name: f"{place}.{alias.name}" for alias in aliases}
    return found


@cache
def _needs(kind: str, module: str) -> bool:
    """Whether one of our modules imports the kind, directly or indirectly."""
    found, ahead = set[str](), [module]
    while ahead:
        for one in map(str, filter(lambda one: isinstance(one, str), _defined(ahead.pop()).values())):
            for place in (one, one.rpartition(".")[0]):
                if place not in found:
                    found.add(place)
                    ahead += [place] * place.startswith(_OURS)
    return any(_is_of(kind, one) for one in found)


def _statements(module: str) -> list[ast.stmt]:
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else []


def _is_of(kind: str, place: str) -> bool:
    return f"{place}.".startswith(f"tuner.ops.{kind}.")


def _without(kind: str) -> Any:
    """Makes the ``__import__`` of a tree without the kind. Test files get `Absent` for it, and for a helper that cannot
    be imported without it. The program gets an ImportError."""
    there = builtins.__import__

    def found(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        given = (name, globals, locals, fromlist, level)
        try:
            return there(*given)
        except Exception:
            if level or not f"{(globals or {}).get('__name__', '')}.".startswith(_OURS):
                raise
        if _is_of(kind, name):
            return Absent()
        for module in (name, *(f"{name}.{one}" for one in fromlist or ())):
            if module.startswith(_OURS) and _needs(kind, module) and not _imported(module):
                around, _, last = module.rpartition(".")
                sys.modules[module] = made = Absent()  # type: ignore[assignment]
                setattr(sys.modules[around], last, made)
        return there(*given)

    return found


def _imported(module: str) -> bool:
    try:
        importlib.import_module(module)
    except pytest.skip.Exception:  # for another reason, which pytest reports
        return True
    except Exception:
        return False
    return True


def pytest_configure() -> None:
    """Runs before any test file is imported."""
    builtins.__import__ = _without(os.environ[KIND])


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignores a file that cannot be imported without the kind."""
    kind, module, name = os.environ[KIND], _module_of(collection_path), collection_path.stem
    may_need = says(kind, name) or _needs(kind, module)
    if not name.startswith("test_") or not may_need or _imported(module):
        return None
    _FILES.append(module)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects and counts the tests of the kind."""
    own = {id(item) for item in items if isinstance(item, pytest.Function) and _is_of_kind(os.environ[KIND], item)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in own])
    items[:] = [item for item in items if id(item) not in own]
    _OUTCOMES["own"], _OUTCOMES["others"], _OUTCOMES["files"] = len(own), len(items), len(_FILES)


def _is_of_kind(kind: str, item: pytest.Function) -> bool:
    if says(kind, item.name) or says(kind, item.path.stem):
        return True
    case = getattr(item, "callspec", None)
    if case is not None and any(holds(kind, one) or one is NOTSET for one in case.params.values()):
        return True
    return any(is_own(kind, _module_of(item.path), one) for one in (item.function.__name__, *item.fixturenames))


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the counts of an xdist process to the controller; each process collects all tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["without"] = dict(_OUTCOMES)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receives the counts of an xdist process."""
    _OUTCOMES.update(node.workeroutput["without"] if not _OUTCOMES else {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests belong to the kind and how many do not."""
    kind, found = os.environ[KIND], _OUTCOMES
    terminalreporter.write_line(f"without {kind}: {found['own']} tests belong to it, {found['others']} do not")
    if _FILES:
        terminalreporter.write_line(
            f"left out completely, since they cannot be imported without it: {', '.join(_FILES)}"
        )


def main(kind: str, *arguments: str) -> int:
    """Runs the tests; returns pytest's exit status, or why they cannot run."""
    if kind not in kinds():
        sys.exit(f"{kind!r} is no kind of op: tuner/ops has {', '.join(kinds())}")
    if op_kinds()[kind].is_unnamed:
        sys.exit(
            f"{kind} cannot be left out: an op without a kind in JSON is one, so the service supports no workload "
            "without it"
        )
    with tempfile.TemporaryDirectory() as folder:
        tree = without_kind(kind, Path(folder), places=["."])
        own = {"PYTHONPATH": str(tree), KIND: kind, REQUESTS: "\n".join(requests_of(kind))}
        env, python = os.environ | own, (sys.executable, "-m")
        # The client's documents and the schema of schedule files are generated from the installed kinds.
        for program in ("tests.house.documents", "tests.house.axes_page"):
            subprocess.run([*python, program], cwd=tree, env=env, check=True)
        call = [*python, "pytest", "-p", "tests.house.without", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(call, cwd=tree, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
