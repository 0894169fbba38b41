"""docs/configuration.md lists every setting with its option, its variable and its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.settings import Settings


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/configuration.md").read_text()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_has_its_row(name: str, page: str) -> None:
    default = Settings.model_fields[name].default
    shown = "none" if default is None else f"`{default}`"
    option = f" `--{name.replace('_', '-')}` " if name in options_of_serve() else " "
    assert f"|{option}| `TUNER_{name.upper()}` | {shown} |" in page


def options_of_serve() -> set[str]:
    return {str(parameter.name) for parameter in main.commands["serve"].params}


def test_every_option_of_the_server_is_a_setting() -> None:
    assert options_of_serve() <= set(Settings.model_fields)


def test_no_row_is_left_of_what_is_gone(page: str) -> None:
    variables = set(re.findall(r"`TUNER_([A-Z_]+)`", page)) - {"URL", "TOKEN", "CONFIG", "WORKER_EXTRA"}
    assert {name.lower() for name in variables} == set(Settings.model_fields)


def test_every_variable_of_make_has_its_row(page: str, root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    for name, default in re.findall(r"^([A-Z_]+)\s*\?= (.+)$", makefile, flags=re.MULTILINE):
        assert f"| `{name}` | `{default}` |" in page
