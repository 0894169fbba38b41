"""The known kinds of ops: the folders of `tuner.ops`, and those that other packages provide through an entry point. A
kind that is made of another one is a folder in that one's: ``conv/pair`` is the kind ``conv_pair``.

A package declares its kind in the group `GROUP`, as ``name = "package.op:KIND"``. The other files of the kind are next
to that module. A broken kind is left out, with the reason, and does not affect other kinds.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import isabstract
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType, ModuleType
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.interface import ANY_FAULT, fields_problem, overrides_problem, reason_of
from tuner.core.problem.op_files import FILES, file_problem, held
from tuner.core.problem.ops.codec import defaults_problem, fields_of, spelling_problem
from tuner.core.problem.ops.op import LaunchOp, Op
from tuner.core.problem.rows.added import row_versions
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.unknown_op import UnknownOp
from tuner.errors import InvalidInput

#: A line of a traceback with a location.
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
#: The group of entry points.
GROUP = "tuner.op_kinds"
#: Allowed names of a kind, in JSON and in lists.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
#: Attributes of an op's class that no JSON field may be named after.
_TAKEN = ("op", "kind", "dtype")
#: Folder of the kinds that come with the program.
_OWN = "tuner.ops"


@dataclass(frozen=True, kw_only=True)
class OpKind:
    """Properties of a kind."""

    #: The dataclass of its ops.
    op: type[Op]
    #: Version of its interface with workers: a worker with a different version does not receive its jobs.
    version: int
    #: Whether the JSON of its ops omits the kind. True for one kind, for compatibility with documents from when
    #: there was only one.
    is_unnamed: bool = False
    #: Other parts of packages that an op of the kind may need, by name, with their versions.
    extras: Callable[[], Mapping[str, int]] = dict

    @property
    def name(self) -> str:
        """Its name in JSON."""
        return self.op.KIND


class _Registry:
    """The known kinds; filled on first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, OpKind] | None = None
        self._packages: dict[str, str] = {}
        #: Why a declared kind cannot be used, by its name, or by its location if the name is already taken.
        self.broken: dict[str, str] = {}
        self._are_checked = False
        #: Files of packages, by kind and file.
        self._held: dict[tuple[str, str], ModuleType | None] = {}

    def kinds(self) -> Mapping[str, OpKind]:
        with self._lock:
            if self._kinds is None:
                self._find()
            return MappingProxyType(self._kinds or {})

    def package_of(self, name: str) -> str:
        self.kinds()
        return self._packages[name]

    def added(self) -> dict[str, str]:
        """The packages of the kinds that do not come with the program."""
        return {name: self._packages[name] for name in self.kinds() if not self._packages[name].startswith(f"{_OWN}.")}

    def _find(self) -> None:
        found: dict[str, OpKind] = {}
        for name, module, attribute in _declared():
            package, place = module.rpartition(".")[0], f"{module}:{attribute}"
            try:
                kind = getattr(importlib.import_module(module), attribute)
                is_own = package.startswith(f"{_OWN}.")
                problem = "" if is_own or not isinstance(kind, OpKind) else fields_problem(kind)
                problem = problem or _problem(name, kind, found) or ("" if is_own else _class_problem(kind.op))
                if not (problem or is_own):
                    place = f"{package}.asked"
                    asked = _file(package, "asked")
                    problem = _asked_problem(asked) or _defaults_problem(getattr(asked, "OP", kind.op), asked)
            except ANY_FAULT as error:
                problem = f"cannot be imported: {reason_of(error, __file__)}"
            if problem:
                self.broken[place if name in found else name] = f"{place} {problem}"
            else:
                found[name], self._packages[name] = kind, package
        self._kinds = found

    def check(self) -> None:
        added = self.added()
        with self._lock:
            if self._are_checked or self._kinds is None:
                return
            self._are_checked = True
            for name, package in added.items():
                if problem := _files_problem(self._kinds[name].op, package):
                    self.broken[name] = f"{package} {problem}"
                    self._kinds.pop(name)

    def part_of(self, name: str, part: str) -> ModuleType | None:
        package = self.package_of(name)
        if package.startswith(f"{_OWN}."):
            return _file(package, part)
        if (name, part) not in self._held:
            found = _file(package, part)
            self._held[name, part] = found and held(self.kinds()[name].op, part, found)
        return self._held[name, part]


def _file(package: str, name: str) -> ModuleType | None:
    module = package
    for part in name.split("."):
        module = f"{module}.{part}"
        if not importlib.util.find_spec(module):
            return None
    return importlib.import_module(module)


def _files_problem(op: type[Op], package: str) -> str:
    """Why the files of a kind cannot be used, except `card`, which needs a card's libraries; empty if they can."""
    for name in FILES:
        try:
            if name != "card" and (problem := file_problem(op, name, _file(package, name))):
                return problem
        except ANY_FAULT as error:
            return f"cannot be imported: {reason_of(error, __file__)}"
    return ""


def _asked_problem(asked: ModuleType | None) -> str:
    """Why a kind's file `asked` cannot be used; empty if it can."""
    workloads = getattr(asked, "WORKLOADS", ())
    if not isinstance(workloads, tuple | list):
        return f"has WORKLOADS that is not a list of classes, but {workloads!r}"
    ops = [asked.OP] if asked and hasattr(asked, "OP") else []
    for one, taken in (*((one, ("op",)) for one in ops), *((one, ("kind",)) for one in workloads)):
        if problem := spelling_problem(one, taken):
            return f"has {one!r}, which {problem}"
    if nameless := next((one for one in workloads if not isinstance(getattr(one, "KIND", None), str)), None):
        return f"has {nameless!r}, whose KIND is empty"
    return ""


def _defaults_problem(op: Any, asked: ModuleType | None) -> str:
    """Which default of an op, or of a kind's workloads, no request could give; empty if there is none."""
    found = ((one, defaults_problem(one)) for one in (op, *getattr(asked, "WORKLOADS", ())))
    return next((f"has {one.__name__}, which {problem}" for one, problem in found if problem), "")


def _problem(name: str, kind: Any, others: Mapping[str, OpKind]) -> str:
    """Why a package's declaration is not a kind of op; empty if it is."""
    if not isinstance(kind, OpKind):
        return f"is not a kind of op, but {kind!r}"
    op = kind.op
    if kind.name != name or not _NAME.fullmatch(name):
        return f"is called {kind.name!r} but declared as {name!r}: use one name of lower-case letters, digits, - and _"
    if name in others:
        return f"is called {name}, like a kind that already exists"
    if kind.is_unnamed and any(other.is_unnamed for other in others.values()):
        return "omits its name from JSON, as another kind already does"
    if not issubclass(op, TileOp | LaunchOp) or isabstract(op):
        missing = ", ".join(sorted(getattr(op, "__abstractmethods__", ()))) or "a base, TileOp or LaunchOp"
        return f"lacks {missing}"
    names: list[str] = [field.name for field in fields(op)] if is_dataclass(op) else []
    if "name" not in names:
        return "has ops that are not a dataclass with a name"
    absent = [one for one in op.FREE if one not in names and not hasattr(op, one)]
    if absent and op.sizes is Op.sizes:
        return f"lists {', '.join(absent)} as what ops may differ in, which are not their fields: name these in FREE"
    if problem := spelling_problem(op, () if kind.is_unnamed else _TAKEN):
        return f"has ops whose class {problem}"
    return ""


def _class_problem(op: type[Op]) -> str:
    """Why the op class of a package is invalid; empty if it is valid."""
    base = TileOp if issubclass(op, TileOp) else LaunchOp
    if problem := overrides_problem(op, base):
        return f"has ops whose class has {problem}"
    has = {one.name for one in fields_of(op)}
    needed = ("m", "n", "k", "source") if base is TileOp else ("m",)
    if lacking := [one for one in needed if one not in has and not hasattr(op, one)]:
        return f"has ops without {', '.join(lacking)}: add fields or properties"
    return ""


def _declared() -> Iterator[tuple[str, str, str]]:
    """Name, module and attribute of each kind: the program's own first."""
    own = Path(str(importlib.import_module(_OWN).__file__)).parent
    for folder in sorted(path.parent.relative_to(own) for path in (*own.glob("*/op.py"), *own.glob("*/*/op.py"))):
        yield "_".join(folder.parts), ".".join((_OWN, *folder.parts, "op")), "KIND"
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.name):
        yield point.name, point.module, point.attr


_REGISTRY = _Registry()


def op_kinds() -> Mapping[str, OpKind]:
    """All known kinds, by name."""
    return _REGISTRY.kinds()


def broken_kinds() -> Mapping[str, str]:
    """Why installed kinds cannot be used, by name."""
    op_kinds()
    return _REGISTRY.broken


def check_kinds() -> None:
    """Leaves out kinds of packages with a file that cannot be imported here. Servers and workers call this before they
    use kinds; clients may lack modules that these files import."""
    _REGISTRY.check()


def kind_of(op: Op) -> OpKind | None:
    """The op's kind; None if it is unknown."""
    return op_kinds().get(op.KIND) if not isinstance(op, UnknownOp) else None


def named_kinds(ops: Sequence[Op]) -> tuple[str, ...]:
    """The kinds of the ops and their other needs, sorted and without duplicates; the unnamed kind is left
    out.
    """
    unnamed = {name for name, kind in op_kinds().items() if kind.is_unnamed}
    names = {op.kind if isinstance(op, UnknownOp) else op.KIND for op in ops}
    needed = {need for op in ops for need in op.needs}
    return tuple(sorted(names - unnamed - {""} | needed))


def spelled(needed: Iterable[str]) -> str:
    """Names of `kind_versions` in a sentence: ``the dtype e5m2 and the kind of op conv``."""
    named = ((name.rpartition(":")[0] or "kind of op", name.rpartition(":")[2]) for name in sorted(needed))
    return " and ".join(f"the {of} {name}" for of, name in named)


def usable_kinds(versions: Mapping[str, int]) -> tuple[str, ...]:
    """The known kinds of which another process has the same version, given its `kind_versions`."""
    return tuple(name for name, version in kind_versions().items() if versions.get(name) == version)


def kind_versions() -> dict[str, int]:
    """The version of each known kind, and of what else packages have added."""
    extras = (kind.extras() for kind in op_kinds().values())
    found = {name: kind.version for name, kind in op_kinds().items()} | {k: v for one in extras for k, v in one.items()}
    return found | row_versions()


def culprit(error: BaseException, otherwise: str = "the service") -> str:
    """The origin of an unexpected exception, as text: the package that raised it or called the code that did;
    `otherwise` if the traceback has none."""
    folders = {folder_of(name): package for name, package in _REGISTRY.added().items()}
    lines = [(one.filename, str(one.lineno)) for one in extract_tb(error.__traceback__)]
    for said in (error.__cause__, *getattr(error, "__notes__", ())):  # from another process
        lines += _LINE.findall(str(said))
    for file, line in reversed(lines):
        if package := folders.get(Path(file).parent):
            return f"the package {package.partition('.')[0]} ({Path(file).name}, line {line})"
    return otherwise


def part_of(kind: str, part: str) -> ModuleType | None:
    """A file of a kind by its name, e.g. ``rules`` or ``pack.shape``; None if the kind has no such file, or is unknown.

    Raises:
        ImportError: the file exists but cannot be imported.
        TypeError: it does not satisfy its protocol.
    """
    if kind not in op_kinds():
        return None
    assert part in FILES, part
    return _REGISTRY.part_of(kind, part)


def package_of(kind: str) -> str:
    """The package with the files of a known kind."""
    return _REGISTRY.package_of(kind)


def folder_of(kind: str) -> Path:
    """The folder with the files of a known kind."""
    origin = importlib.import_module(f"{_REGISTRY.package_of(kind)}.op").__file__
    assert origin, kind
    return Path(origin).parent


def op_from_json(data: Mapping[str, Any], dtype: Dtype) -> Op:
    """An op of any kind; one of an unknown kind keeps its JSON.

    Raises:
        InvalidInput: a field is unknown, missing or out of range.
    """
    name = data.get("op")
    if name is None:
        kind = next((kind for kind in op_kinds().values() if kind.is_unnamed), None)
    elif isinstance(name, str):
        kind = op_kinds().get(name)
    else:
        raise InvalidInput("op", f"is {name!r}", "use the name of a kind of op")
    if kind is None or (unknown := kind.op.unknown_in(data)):
        return UnknownOp.of(data, str(name or "") if kind is None else unknown)
    return kind.op.from_json(dict(data), dtype)
