"""Messages that tests on a card expect are messages of the program: a text that changes without them is found here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.slow

CARD_TESTS = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
#: Where messages are written: the program, and the packages that tests bring.
SOURCES = ("tuner", "workers", "runtime/src", "tests/toys", "tests/support")
#: The value of an expression in a message.
HOLE = "\0"
#: Ends a piece of a message: an expression, a number, a part of a regular expression, or the end of a clause, since
#: the next one may be added elsewhere.
_ENDS = re.compile(r"\0|\\d\+|\\w\+|\.\*|\d+(?:\.\d+)?|[:;,] ")
#: A format specification of C, and a string literal.
_SPECIFICATION = re.compile(r"%[-+ #0-9.*]*(?:ll|[hlz])?[a-z]|\"\s*PRI\w+\s*\"")
_C_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*')


def literal(node: ast.AST) -> str | None:
    """The text of a string or of an f-string, with holes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else HOLE for one in node.values)
    return None


@cache
def messages() -> str:
    """All texts of the program that have several words, one after another."""
    found = dict[str, None]()
    for path in (path for folder in SOURCES for path in (ROOT / folder).rglob("*")):
        if path.suffix == ".py":
            found |= dict.fromkeys(filter(None, map(literal, ast.walk(ast.parse(path.read_text())))))
        elif path.suffix in (".c", ".h"):
            strings = _C_STRINGS.findall(path.read_text())
            found |= dict.fromkeys(re.sub(r'"\s*"', "", _SPECIFICATION.sub(HOLE, one)) for one in strings)
    return "\n".join(text for text in found if " " in text)


def expected(path: Path) -> Iterator[tuple[int, str]]:
    """The texts that a file compares with a message, with their lines: `match=`, one side of a comparison, or a value
    of a dictionary of such texts called `said`."""
    for node in ast.walk(ast.parse(path.read_text())):
        sides: list[ast.expr] = []
        if isinstance(node, ast.keyword) and node.arg == "match":
            sides = [node.value]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            sides = node.value.values if getattr(node.targets[0], "id", "") == "said" else []
        yield from ((side.lineno, text) for side in sides if (text := literal(side)) is not None)


def pieces(text: str) -> list[str]:
    """The parts of an expected text that have at least three words."""
    plain = re.sub(r"\\([][().])", r"\1", text)
    return [piece for one in _ENDS.split(plain) if len((piece := one.strip(" ,[]()")).split()) > 2]


def is_said(piece: str) -> bool:
    """Whether a message contains the piece; an expression may stand for a third of its words."""
    words = piece.split()
    for hidden in (places for count in range(len(words) // 3 + 1) for places in combinations(range(len(words)), count)):
        if " ".join(HOLE if i in hidden else word for i, word in enumerate(words)) in messages():
            return True
    return False


@pytest.mark.parametrize("path", CARD_TESTS, ids=[path.stem for path in CARD_TESTS])
def test_every_message_that_a_card_test_expects_is_one_of_the_program(path: Path) -> None:
    unknown = [(line, one) for line, text in expected(path) for one in pieces(text) if not is_said(one)]
    assert unknown == []


@pytest.mark.slow
def test_a_message_that_nothing_writes_is_found() -> None:
    assert sum(len(pieces(text)) for path in CARD_TESTS for _, text in expected(path)) > 30
    assert is_said("elements of down are wrong")
    assert not is_said("elements of down were wrong")
    assert not is_said("the kernel accessed memory that is not there")
