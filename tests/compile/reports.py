"""Records what the compiler reports on the kernels that CI's tests compile, so that it compiles only changed ones.

python -m tests.compile.reports    renews tests/compile/reports.json, as `make golden` does.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import reports
from tests.support.repository import ROOT

#: The function that reports; a test that names it, or something at the top of its file that does, is run.
ASKS = "report_of"


def files() -> list[Path]:
    """The test files that ask for reports, themselves or in a program that they run."""
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if not {"gpu", "support"} & {*path.parts}]
    return sorted(path for path in tests if re.search(rf"\b{ASKS}\(", path.read_text()))


def asking(path: Path) -> set[str]:
    """The names at the top of a file that lead to the function."""
    found, statements = {ASKS}, ast.parse(path.read_text()).body
    while True:
        words = re.compile(rf"\b({'|'.join(found)})\b")
        more = {
            name
            for one in statements
            if words.search(ast.unparse(one))
            for name in ([one.name] if isinstance(one, ast.FunctionDef) else _assigned(one))
        }
        if more <= found:
            return found
        found |= more


def _assigned(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [one.id for one in targets if isinstance(one, ast.Name)]


class Asking:
    """Selects the tests that ask for reports."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = {path: asking(path) for path in files()}
        items[:] = [item for item in items if item.name.partition("[")[0] in names[item.path]]


def main() -> int:
    """Runs their tests with a folder for reports, and writes the file if they pass."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[reports.RECORDS] = folder
        status = pytest.main(["-q", "-m", "not soak", *map(str, files())], [Asking()])
        if status == pytest.ExitCode.OK:
            print(f"wrote {reports.write(Path(folder))} reports to {reports.FILE}")
        return int(status)


if __name__ == "__main__":
    sys.exit(main())
