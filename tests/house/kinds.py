"""Where the program names a kind of op, by its syntax trees; ``python -m tests.house.kinds`` renews the frozen list."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: By kind and file, how often the kind is named outside its own files.
FROZEN = Path(__file__).with_name("kinds_named.json")
#: A word of an identifier, or of a literal, that names a kind.
_WORDS = {"gemm": frozenset({"gemm", "gemms"}), "attention": frozenset({"attention", "attentions"})}
#: ``DecodeAttention``, ``num_gemms``, ``HTTPGemm``, ``op:attention``: the words in it.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Named = dict[str, dict[str, int]]


def words_of(text: str) -> Iterator[str]:
    """The words of an identifier or a literal, in small letters."""
    return (word.lower() for word in _WORD.findall(text))


def texts(tree: ast.AST) -> Iterator[str]:
    """Imports, identifiers and literals; not what is written for readers."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield module or ""
                yield from (text for alias in names for text in (alias.name, alias.asname or ""))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield text


def is_own(kind: str, path: str) -> bool:
    """Whether a file belongs to the kind: by a folder of its name, or by a word of the file's."""
    *folders, name = path.split("/")
    return kind in folders or not _WORDS[kind].isdisjoint(words_of(name.removesuffix(".py")))


def count(source: str) -> Counter[str]:
    """How often each kind is named."""
    found = [set(words_of(text)) for text in texts(ast.parse(source))]
    return Counter(kind for words in found for kind, own in _WORDS.items() if not own.isdisjoint(words))


def named_in(paths: Iterable[Path]) -> Named:
    """By kind and file, how often it is named outside its own files."""
    found: Named = {kind: {} for kind in _WORDS}
    for path in sorted(paths):
        place = path.relative_to(ROOT).as_posix()
        for kind, times in count(path.read_text(encoding="utf-8")).items():
            if not is_own(kind, place):
                found[kind][place] = times
    return found


def program() -> list[Path]:
    """All that the wheel brings."""
    own = (path for path in (ROOT / "tuner").rglob("*.py") if ROOT / "tuner" / "workers" not in path.parents)
    return [*own, *(ROOT / "workers").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")]


def frozen() -> Named:
    """What is allowed."""
    named: Named = json.loads(FROZEN.read_text(encoding="utf-8"))
    return named


def grown(found: Named, allowed: Named) -> list[str]:
    """In words, the files that name a kind more often than is allowed."""
    return [
        f"{place} names {kind} {times} times, and {allowed[kind].get(place, 0)} are allowed"
        for kind, places in found.items()
        for place, times in places.items()
        if times > allowed[kind].get(place, 0)
    ]


def main() -> None:
    """Writes the list anew, unless a kind is named more often than before in all files together."""
    found, allowed = named_in(program()), frozen() if FROZEN.exists() else {}
    for kind, places in found.items():
        before, now = sum(allowed.get(kind, places).values()), sum(places.values())
        print(f"{kind}: {before} -> {now} in {len(places)} files")
        if now > before:
            raise SystemExit(f"{kind} is named more often than before:\n" + "\n".join(grown(found, allowed)))
    FROZEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
