"""The exception tree in the docs is the real one."""

from __future__ import annotations

import re

import tuner.errors
from tuner.errors import TunerError


def drawn_tree(docstring: str) -> dict[str, str | None]:
    """Child -> parent, read from the drawing by the columns at which names begin."""
    parents: dict[str, str | None] = {}
    open_names: list[tuple[int, str]] = []
    for line in docstring.splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+)(\s{2,}|$)", line)
        if not match:
            continue
        column, name = len(match[1]), match[2]
        open_names = [(c, n) for c, n in open_names if c < column]
        parents[name] = open_names[-1][1] if open_names else None
        open_names.append((column, name))
    return parents


def real_tree(root: type[TunerError]) -> dict[str, str | None]:
    """Child -> parent, for the classes defined in `tuner.errors`."""
    parents: dict[str, str | None] = {root.__name__: None}
    for child in root.__subclasses__():
        if child.__module__ == tuner.errors.__name__:
            parents |= real_tree(child) | {child.__name__: root.__name__}
    return parents


def test_the_drawing_in_the_docstring_is_the_real_exception_tree() -> None:
    assert drawn_tree(tuner.errors.__doc__ or "") == real_tree(TunerError)


def test_every_error_says_what_it_means() -> None:
    classes = [value for value in vars(tuner.errors).values() if isinstance(value, type)]
    assert [c.__name__ for c in classes if issubclass(c, TunerError) and not c.__doc__] == []
