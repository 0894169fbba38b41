"""The files of a kind of op, each with the code that reads it; the reader's protocol defines what a file must contain.

Protocols are given by name here, since this package may not import the readers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any

from tuner.core.problem.interface import hooks_of, module_problem, returned_by, value_problem
from tuner.core.problem.ops.op import LaunchOp, Op


@dataclass(frozen=True, kw_only=True)
class OpFile:
    """A file of a kind of op."""

    #: The protocols of the code that uses it, for launch ops and for tile ops, as ``module:Class``; empty if there is
    #: none.
    launch: str = ""
    tile: str = ""
    #: Members that may be missing.
    optional: tuple[str, ...] = ()
    #: Whether nothing can be tuned without it.
    is_needed: bool = False

    def protocol_of(self, op: type[Op]) -> str:
        """The protocol for an op's kind, by whether it is a launch op or a tile op."""
        return self.launch if issubclass(op, LaunchOp) else self.tile


_JOINS = "tuner.core.problem.joined:Joins"
#: Optional files of a kind besides its `op`, in the order of a job: request, schedule, rules, plan, forecast, search
#: space, search, compilation, launch, check, description, pack. Only a card's child process imports `card`.
FILES: Mapping[str, OpFile] = MappingProxyType(
    {
        "asked": OpFile(),
        "joined": OpFile(launch=_JOINS, tile=_JOINS),
        "schedule": OpFile(),
        "rules": OpFile(
            launch="tuner.core.legal.launch_ops:Rules", tile="tuner.core.legal.own_tasks:TileRules", is_needed=True
        ),
        "lowering": OpFile(tile="tuner.core.plan.graph.lowering:Lowering", is_needed=True),
        "plans": OpFile(
            launch="tuner.core.proof.own_plans:OwnPlans",
            optional=("spaces_of", "check_plan", "digest_of"),
            is_needed=True,
        ),
        "costs": OpFile(
            launch="tuner.core.model.launch_ops:Costs", tile="tuner.core.model.launch_ops:TileCosts", is_needed=True
        ),
        "space": OpFile(launch="tuner.core.space.joint:OfferedByKind", is_needed=True),
        "search": OpFile(launch="tuner.search.launch_op:SearchOfKind", is_needed=True),
        "source": OpFile(
            launch="tuner.workers.source.own_source:OwnSource",
            tile="tuner.workers.source.own_tasks:TaskSource",
            is_needed=True,
        ),
        "launches": OpFile(launch="tuner.core.proof.own_plans:LaunchesOfKind", optional=("report_of",)),
        "numbers": OpFile(launch="tuner.core.trial.reports.numbers:Numbers", optional=("planted", "draw")),
        "reference": OpFile(tile="tuner.workers.gpu.tensors.reference:TileReference", is_needed=True),
        "words": OpFile(
            launch="tuner.core.insight.explain_launch_ops:Words",
            tile="tuner.core.insight.verdict_words:LibraryWords",
            optional=("order_of_sums",),
        ),
        "stamps": OpFile(launch="tuner.core.insight.traces.tracing:StampsOfKind"),
        "library": OpFile(),
        "artifact": OpFile(),
        "pack.shape": OpFile(),
        "pack.launches": OpFile(),
        "pack.program": OpFile(),
        "models": OpFile(),
        "described": OpFile(),
        "formula": OpFile(),
        "card": OpFile(
            launch="tuner.workers.gpu.library.op_library:CardOfLaunchOp",
            tile="tuner.workers.gpu.tensors.own_ops:CardOfTileOp",
            optional=("data_of", "baseline_of", "kernel_of"),
        ),
    }
)


def file_problem(op: type[Op], name: str, file: ModuleType | None) -> str:
    """Why a kind's file does not satisfy its protocol; empty if it does, or has none."""
    asked = FILES[name]
    if name == "schedule" and file is not None:
        return _schedule_problem(op, file)
    if not (protocol := asked.protocol_of(op)) or getattr(op, "IS_PRODUCT", False):
        return ""
    if file is None:
        what = f"{name}.py with {', '.join(hooks_of(_loaded(protocol)))}" if asked.is_needed else ""
        return what and f"has no file {what}"
    problem = module_problem(file, _loaded(protocol), asked.optional)
    return problem and f"({name}.py) {problem}"


def _schedule_problem(op: type[Op], file: ModuleType) -> str:
    base = _loaded(f"tuner.core.schedule.levels:{'Launch' if issubclass(op, LaunchOp) else 'Tile'}OpSchedule")
    own = [one for one in vars(file).values() if isinstance(one, type) and one.__module__ == file.__name__]
    found = [one for one in own if issubclass(one, base) and is_dataclass(one)]
    if not found:
        return f"(schedule.py) has no dataclass derived from {base.__name__}"
    kind = getattr(found[-1], "kind", "")
    axes, of_base = ({one.name for one in fields(cls)} for cls in (found[-1], base))
    if taken := sorted((axes - of_base) & {"op", *dir(base)}):
        return f"(schedule.py) has an axis called {taken[0]!r}, which every schedule has: use another name"
    if kind != op.KIND:
        return f"(schedule.py) has a class of the kind {kind!r}: declare its class with kind={op.KIND!r}"
    return ""


def held(op: type[Op], name: str, file: ModuleType) -> Any:
    """A kind's module with functions that check their return types, so that an error is reported where it originates.

    Raises:
        TypeError: the file does not satisfy its protocol.
    """
    if not (protocol := FILES[name].protocol_of(op)):
        return file
    if problem := file_problem(op, name, file):
        raise _fault(f"{file.__name__} {problem}", file.__file__, 1)
    made = ModuleType(file.__name__, file.__doc__)
    hooks = hooks_of(_loaded(protocol))
    made.__dict__.update(
        {
            key: _held_call(file.__name__, value, returned_by(hooks[key])) if key in hooks else value
            for key, value in vars(file).items()
        }
    )
    return made


def _held_call(place: str, function: Callable[..., Any], returned: Any) -> Callable[..., Any]:
    if returned is Any or isinstance(function, type):
        return function

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        found = function(*given, **named)
        if problem := value_problem(found, returned):
            code = getattr(function, "__code__", None)
            raise _fault(
                f"what {place}.{function.__name__} returned {problem}",
                getattr(code, "co_filename", place),
                getattr(code, "co_firstlineno", 1),
            )
        return found

    return call


def _fault(what: str, file: str | None, line: int) -> TypeError:
    """An error with its location, in the form of a traceback, from which the package is identified."""
    error = TypeError(what)
    error.add_note(f'File "{file}", line {line}')
    return error


def _loaded(protocol: str) -> type:
    module, _, name = protocol.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found
