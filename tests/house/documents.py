"""Generates the client's typed documents from the models of the wire format and from the spellings of workloads.

``python -m tests.house.documents`` writes them to a file, because the client must not import the models and a type
checker runs no code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from tuner.core.problem.asked import CHAIN, AskedOp, AskedWorkload, asked_op, asked_workloads
from tuner.core.problem.op_kinds import op_kinds, package_of
from tuner.core.problem.ops.codec import fields_of, hints_of
from tuner.wire.requests.pairs import Pair, UnknownOps
from tuner.wire.responses.batches import BatchBestView, BatchJobView, BatchView
from tuner.wire.responses.job_detail import JobDetail
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import BestView, TrialView

CLIENT = Path(__file__).parents[2] / "tuner/client/documents"
#: The models in each file of responses. The models that they contain are written before them.
ANSWERS: dict[str, tuple[type[BaseModel], ...]] = {
    "documents.py": (JobView, JobDetail, TrialView, BestView),
    "batch_documents.py": (BatchView, BatchJobView, BatchBestView),
}
#: Names of documents for which the name without `View` would be unclear.
_NAMES = {"RungView": "LadderRung", "GainView": "LadderGain"}
_HEAD = '''"""{about}

Written by ``python -m tests.house.documents``.{more}
"""

from __future__ import annotations

from typing import {typing}
{imports}
'''


def _whole(*values: str) -> str:
    return f"Literal[{', '.join(map(json.dumps, values))}]"


def name_of(model: type) -> str:
    """The name of a document's type."""
    return _NAMES.get(model.__name__, model.__name__.removesuffix("View"))


def _typed(hint: Any, found: list[type]) -> str:
    """The JSON type of a type; records the documents that it contains."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _typed(args[0], found)
    if origin in (Union, types.UnionType):
        if args and all(isinstance(one, type) and issubclass(one, Pair | UnknownOps) for one in args):
            return "Pair"
        return " | ".join(dict.fromkeys(_typed(one, found) for one in args))
    if origin is Literal:
        return _whole(*args)
    if origin in (list, tuple):
        return f"list[{_typed(args[0], found)}]"
    if origin is dict:
        return f"dict[{', '.join(_typed(one, found) for one in args)}]"
    if isinstance(hint, type) and issubclass(hint, StrEnum | datetime):
        return "str"
    if isinstance(hint, type) and (issubclass(hint, BaseModel) or is_dataclass(hint)):
        found.append(hint)
        return name_of(hint)
    return {types.NoneType: "None", Any: "Any"}.get(hint) or str(hint.__name__)


def _written(name: str, bases: Iterable[str], doc: str | None, members: Iterable[str]) -> str:
    body = [f'    """{cleandoc(doc or name).partition(chr(10) * 2)[0]}"""', "", *(f"    {one}" for one in members)]
    return f"class {name}({', '.join(bases) or 'TypedDict'}):\n" + "\n".join(body) + "\n"


def _model(model: type[BaseModel], done: dict[type, str]) -> None:
    """Writes a model of the wire format after the models that it contains."""
    if model in done:
        return
    bases = [one for one in model.__bases__ if one in done]
    inherited = {name for base in bases for name in base.model_fields}  # type: ignore[attr-defined]  # a model
    found: list[type] = []
    members = [
        f"{name}: {_typed(field.annotation, found)}"
        for name, field in model.model_fields.items()
        if name not in inherited
    ]
    for one in found:
        _model(one, done)
    done[model] = _written(name_of(model), map(name_of, bases), model.__doc__, members)


def _spelled(one: type, done: dict[type, str], *head: str) -> None:
    """Writes a request's dataclass after those that it contains and those that it extends."""
    if one in done:
        return
    bases = [base for base in one.__bases__ if is_dataclass(base) and base not in (AskedOp, AskedWorkload)]
    for base in bases:
        _spelled(base, done)
    inherited, hints = {each.name for base in bases for each in fields(base)}, hints_of(one)
    found: list[type] = []
    members = list(head)
    for each in fields_of(one):
        if each.name not in inherited:
            typed = _typed(hints[each.name], found)
            members.append(f"{each.name}: {typed if each.default is MISSING else f'NotRequired[{typed}]'}")
    for within in found:
        _spelled(within, done)
    done[one] = _written(one.__name__, [base.__name__ for base in bases], one.__doc__, members)


def _asked() -> str:
    done: dict[type, str] = {}
    kinds = [kind for kind in op_kinds().values() if package_of(kind.name).startswith("tuner.")]
    ops = [asked_op(kind.name) for kind in sorted(kinds, key=lambda kind: not kind.is_unnamed)]
    for kind, op in zip(sorted(kinds, key=lambda kind: not kind.is_unnamed), ops, strict=True):
        _spelled(op, done, *([] if kind.is_unnamed else [f"op: {_whole(kind.name)}"]))
    ways = [one for one in asked_workloads().values() if one.__module__.startswith("tuner.")]
    for one in ways:
        _spelled(one, done, f"kind: {_whole(one.KIND)}")
    chain = [f"kind: {_whole(CHAIN)}", "m: NotRequired[int]", f"ops: list[{' | '.join(op.__name__ for op in ops)}]"]
    parts = [*done.values()]
    parts.append(_written("Chain", [], "Up to eight ops in topological order.", [*chain, "dtype: NotRequired[str]"]))
    unknown: dict[type, str] = {}
    _model(UnknownOps, unknown)
    parts += unknown.values()
    answered = [one.__name__ for one in ways if one.of.__func__ is not AskedWorkload.of.__func__]  # type: ignore[attr-defined]  # class methods
    parts.append(f"#: A workload in the form of responses.\nPair = {' | '.join([*answered, 'Chain', 'UnknownOps'])}\n")
    others = [one.__name__ for one in ways if one.__name__ not in answered]
    parts.append(
        "#: What `POST /jobs` accepts as `pair`. In the response, a preset appears as its chain.\n"
        f"Asked = {' | '.join(['Pair', *others])}\n"
    )
    about = "The workloads that a job may request: pairs, chains, and ops of a model by its name."
    return _file(about, "", "", parts)


def _answers(name: str, written: dict[type, str]) -> str:
    """A file of answer types; `written` holds the types of earlier files, and then those of this file."""
    done = dict(written)
    for model in ANSWERS[name]:
        _model(model, done)
    own = {model: text for model, text in done.items() if model not in written}
    text = "\n".join(own.values())
    used = [name_of(one) for one in written if f": {name_of(one)}" in text or f"[{name_of(one)}" in text]
    if written:
        about, imports = (
            "The documents of batches that the API returns.",
            f"from tuner.client.documents.documents import {', '.join(sorted(used))}",
        )
    else:
        names = [
            line.removeprefix("class ").partition("(")[0] for line in _asked().splitlines() if line.startswith("class")
        ]
        shown = sorted([*names, "Pair", "Asked"])
        every = sorted([*shown, *map(name_of, own)])
        imports = f"from tuner.client.documents.asked import {', '.join(shown)}\n\n__all__ = {every!r}"
        about = "The documents of the API for type checkers: plain dicts with these keys."
    written |= own
    return _file(about, " `/openapi.json` describes each field.", imports, own.values())


def _file(about: str, more: str, imports: str, parts: Iterable[str]) -> str:
    body = "\n\n".join(parts)
    typing = [name for name in ("Any", "Literal", "NotRequired", "TypedDict") if name in body]
    head = _HEAD.format(about=about, more=more, typing=", ".join(typing), imports=f"\n{imports}" if imports else "")
    return _formatted(f"{head}\n{body}")


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(CLIENT / "documents.py"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def drawn() -> Iterator[tuple[Path, str]]:
    """Each file and its required contents."""
    yield CLIENT / "asked.py", _asked()
    written: dict[type, str] = {}
    for name in ANSWERS:
        yield CLIENT / name, _answers(name, written)


if __name__ == "__main__":
    for path, text in drawn():
        path.write_text(text, encoding="utf-8")
