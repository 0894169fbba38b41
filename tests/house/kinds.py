"""Lists where the program names an op kind outside its folder; ``python -m tests.house.kinds`` renews the list.

The list has two halves. Names that stay permanently have a reason: a released interface, or another project's term. The
names *to go* may only become fewer.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).with_name("kinds_named.json")
#: Words that begin like a kind's name but do not mean the kind.
_OTHERS = frozenset({"gemma", "convert", "converted", "converting", "conversion"})
#: The words in a name such as ``DecodeAttention``, ``num_gemms``, ``HTTPGemm`` or ``op:attention``.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_COMMENT = re.compile(r"//.*|/\*.*?\*/|\"[^\"\n]*\"", re.S)
_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.S)
_LITERALS = (ast.Constant, ast.BinOp, ast.JoinedStr)
_MAY_BE_SPELLED = (*_LITERALS, ast.FormattedValue, ast.Call)
#: What the list calls a kind's name in the path of a file or folder.
PATH = "the path"

#: The number of occurrences, by file and name.
Named = dict[str, dict[str, int]]


def kinds() -> tuple[str, ...]:
    """The folders of kinds."""
    return tuple(sorted(path.parent.name for path in (ROOT / "tuner/ops").glob("*/op.py")))


def words_of(text: str) -> Iterator[str]:
    """The words of an identifier or a literal, in lower case."""
    return (word.lower() for word in _WORD.findall(text))


def names_of(text: str, known: Iterable[str]) -> set[str]:
    """The kinds that an identifier or a literal names; ``sgemm`` and ``attentionop`` are included."""
    whole = text.lower()
    if not any(kind in whole for kind in known):  # most texts have none, and splitting words is slow
        return set()
    words = [word for word in words_of(text) if word.removesuffix("s") not in _OTHERS]
    return {kind for kind in known if any(word.startswith(kind) or f"{word}s".endswith(f"{kind}s") for word in words)}


@cache
def texts_of_python(text: str) -> tuple[str, ...]:
    """What `texts` finds in a file, for all rules that ask for it."""
    return tuple(texts(ast.parse(text)))


def texts(tree: ast.AST) -> Iterator[str]:
    """Imports, identifiers and literals of a file of any syntax, including literals that the source concatenates;
    comments and docstrings are left out."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):  # a whole text comes before its parts
        if id(node) in docs and isinstance(node, ast.Constant):
            continue
        if (spelled := _spelled(node) if isinstance(node, _MAY_BE_SPELLED) else None) is not None:
            if not isinstance(node, ast.Constant):
                docs |= {id(part) for part in ast.walk(node) if isinstance(part, _LITERALS)}
            yield spelled
        elif not isinstance(node, ast.Constant):
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, str):
                    yield value
                elif isinstance(value, list):
                    yield from (one for one in value if isinstance(one, str))


def _spelled(node: ast.AST) -> str | None:
    """The text of a literal, of a sum or join of literals, or of the constant parts of an f-string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(text)):
            return text.decode("latin-1")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_spelled(left), _spelled(right)]
        case ast.JoinedStr(values=values):
            return "".join(_spelled(one) or " " for one in values)
        case ast.FormattedValue(value=value):
            return _spelled(value)
        case ast.Call(func=ast.Attribute(value=glue, attr="join"), args=[ast.List(elts=of) | ast.Tuple(elts=of)]):
            parts = [_spelled(one) for one in of]
            return None if None in parts else (_spelled(glue) or "").join(filter(None, parts))
        case _:
            return None
    return None if None in parts else "".join(filter(None, parts))


#: Functions that find a file's identifiers and literals, by its suffix.
_READERS: Mapping[str, Callable[[str], Iterable[str]]] = {
    ".py": texts_of_python,
    ".html": lambda text: re.findall(r"\w+", " ".join(_EXPRESSION.findall(text))),
    ".js": lambda text: re.findall(r"\w+", re.sub(r"//.*|/\*.*?\*/", "", text, flags=re.S)),
    **dict.fromkeys((".cuh", ".cu", ".in"), lambda text: re.findall(r"[A-Za-z_]\w*", _COMMENT.sub("", text))),
}


def texts_of(path: str, text: str) -> Iterable[str]:
    """Identifiers and literals of a file; comments and docstrings are left out."""
    return _READERS[Path(path).suffix](text)


def count(path: str, text: str, known: Iterable[str]) -> dict[str, int]:
    """How often each kind's name occurs in a file outside the kind's folder."""
    others = [kind for kind in known if not path.startswith(f"tuner/ops/{kind}/")]
    found = Counter(one for one in texts_of(path, text) if names_of(one, others))
    if names_of(path, others):
        found[PATH] += 1
    return dict(sorted(found.items()))


def named_in(paths: Iterable[Path], known: Iterable[str]) -> Named:
    """The names of the kinds `known` that occur outside the kind's own folder, by file."""
    places = ((path.relative_to(ROOT).as_posix(), path) for path in sorted(paths))
    found = {place: count(place, path.read_text(encoding="utf-8"), known) for place, path in places}
    return {place: names for place, names in found.items() if names}


def program() -> list[Path]:
    """All Python files of the wheel."""
    own = (path for path in (ROOT / "tuner").rglob("*.py") if ROOT / "tuner" / "workers" not in path.parents)
    return [*own, *(ROOT / "workers").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")]


def sources() -> list[Path]:
    """All files of the wheel, including device code, templates and scripts. `runtime` is C code, whose names belong to
    the ABI."""
    device = [path for room in ("workers", "tuner/ops") for path in (ROOT / room).rglob("*") if path.is_file()]
    pages = [path for path in (ROOT / "tuner/api").rglob("*") if "vendor" not in path.parts]
    return [*program(), *(one for one in (*device, *pages) if one.suffix in _READERS and one.suffix != ".py")]


class Frozen:
    """The list of allowed names."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """`data` is the file's contents: the names that stay, by reason; folders and files that may contain any name,
        with the reason; the names to remove; and kinds that are searched for even without their folder."""
        self.kinds = sorted({*kinds(), *data["kinds"]})
        self.for_good: Mapping[str, Named] = data["for good"]
        self.anywhere: Mapping[str, str] = data["anywhere in"]
        self.to_go: Named = data["to go"]

    @classmethod
    def read(cls) -> Frozen:
        """Reads the list from the file."""
        return cls(json.loads(FROZEN.read_text(encoding="utf-8")))

    def left(self, found: Named) -> Named:
        """The names that no reason explains."""
        kept = [(place, names) for places in self.for_good.values() for place, names in places.items()]
        left: Named = {}
        for place, names in found.items():
            if place.startswith(tuple(self.anywhere)):
                continue
            known = Counter[str]()
            for _, stays in (one for one in kept if one[0] == place):
                known.update(stays)
            if more := dict(Counter(names) - known):
                left[place] = more
        return left

    def grown(self, found: Named) -> list[str]:
        """Describes the names that exceed the list."""
        return [
            f"{place} names a kind of op by {name!r} {times} times more than it may: ask the op, or its kind, instead"
            for place, names in self.left(found).items()
            for name, times in (Counter(names) - Counter(self.to_go.get(place, {}))).items()
        ]

    def idle(self, found: Named) -> list[str]:
        """Describes the names that are listed as staying but no longer occur."""
        rows = [(place, names) for places in self.for_good.values() for place, names in places.items()]
        rows += [*self.to_go.items()]
        gone = [
            f"{place} has no {name!r} now, or fewer of them"
            for place, names in rows
            for name, times in names.items()
            if found.get(place, {}).get(name, 0) < times
        ]
        return gone + [f"nothing in {one} names a kind" for one in self.anywhere if not _any_in(one, found)]


def _any_in(folder: str, found: Named) -> bool:
    return any(place.startswith(folder) for place in found)


def main() -> None:
    """Rewrites the list of names to remove, unless it would grow; the list of names that stay is edited by hand."""
    frozen = Frozen.read()
    found = named_in(sources(), frozen.kinds)
    left = frozen.left(found)
    before, now = (sum(sum(names.values()) for names in one.values()) for one in (frozen.to_go, left))
    print(f"to go: {before} -> {now} in {len(left)} files")
    if now > before:
        raise SystemExit("these files name kinds more often than before:\n" + "\n".join(frozen.grown(found)))
    kept = {
        why: {
            place: {name: min(times, found[place][name]) for name, times in names.items() if name in found[place]}
            for place, names in places.items()
            if place in found
        }
        for why, places in frozen.for_good.items()
    }
    data = {"kinds": frozen.kinds, "for good": kept, "anywhere in": frozen.anywhere, "to go": left}
    FROZEN.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
