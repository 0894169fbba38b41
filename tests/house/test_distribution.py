"""Install commands in the repository install this project by its own name or path: the name `tuner` belongs to another
project on PyPI."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.versions import DISTRIBUTION, install_command

#: Packages of other projects that texts may tell users to install, in addition to those that pyproject.toml requires.
THIRD_PARTY = {"torch"}
#: Files with commands that someone may type, or that a program prints or runs.
SUFFIXES = {".md", ".py", ".toml", ".yml", ".html", ""}

#: `pip install`, then options and requirements in shell syntax; a closing quote or a comment ends them.
COMMAND = re.compile(r"""pip3? install((?:[ \t]+(?:-\S+|'[^'\n]*'|"[^"\n]*"|(?:\$\(\w+\)|[^\s'"`#&;|()\\])+))*)""")
#: The other project with our extras, or after the word "install" in any sentence.
OTHER = re.compile(r"(?<![\w./-])tuner\[[a-z]|\binstall\s+['\"]?tuner(?![\w./-])")
#: The beginning of our wheel's file name.
WHEEL = DISTRIBUTION.replace("-", "_") + "-"
#: Written in pieces, so that this file passes its own rule.
PIP = "pip in" + "stall"


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    """The table of the project in pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def name_of(requirement: str) -> str:
    """The name of a requirement, without extras and version."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]


def wrong_installs(text: str, project: dict[str, Any]) -> list[str]:
    """Installed packages of a text that are neither our paths nor our requirements: tuner is not on PyPI."""
    extras = project["optional-dependencies"]
    required = {name_of(line) for lines in (project["dependencies"], *extras.values()) for line in lines}
    wrong = [match.group() for match in OTHER.finditer(text)]
    for words in COMMAND.findall(text):
        for word in words.split():
            requirement = word.strip("'\"")
            name, _, asked = requirement.rstrip("]").partition("[")
            wheel = name.endswith(".whl") and (name.startswith("$") or Path(name).name.startswith(WHEEL))
            folder = name.startswith(".") and not name.endswith(".whl")
            is_ours = wheel or folder
            # A variable of the shell, of make or of an f-string represents an extra that is tested elsewhere.
            unknown = [] if "$" in asked or "{" in asked else set(filter(None, asked.split(","))) - extras.keys()
            if word.startswith("-") or (is_ours and not unknown):
                continue
            if is_ours or name_of(name) not in (required | THIRD_PARTY) - {DISTRIBUTION}:
                wrong.append(requirement)
    return wrong


@pytest.mark.slow
def test_every_install_that_is_printed_or_run_names_a_path_of_this_project(
    repository_files: list[Path], root: Path, project: dict[str, Any]
) -> None:
    found = {
        str(path.relative_to(root)): wrong
        for path in repository_files
        if path.suffix in SUFFIXES
        if (wrong := wrong_installs(path.read_text(), project))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [f"{PIP} {{}}", f"{PIP} '{{}}[server]'", f"python -m {PIP} --quiet {{}} # a word", "first in" + "stall {}[server]"],
)
def test_a_line_that_brings_the_other_project_or_nothing_is_seen(line: str, project: dict[str, Any]) -> None:
    assert wrong_installs(line.format("tuner"), project)
    assert "first" in line or wrong_installs(line.format(DISTRIBUTION), project)
    assert wrong_installs(line.format("."), project) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (f"{PIP} '.[server,worker-cuda13]'   # driver 580", []),
        (f"{PIP} ./{WHEEL}0.1.0-py3-none-any.whl", []),
        (f"{PIP} ./tuner-0.1.0-py3-none-any.whl", ["./tuner-0.1.0-py3-none-any.whl"]),
        (f"{PIP} '.[sever]'", [".[sever]"]),
        (f"{PIP} nunpy", ["nunpy"]),
        (f'raise Error("{PIP} torch") from error', []),
    ],
)
def test_a_misspelt_extra_and_a_stranger_are_seen(line: str, wrong: list[str], project: dict[str, Any]) -> None:
    assert wrong_installs(line, project) == wrong


def test_the_name_and_the_version_stand_in_one_place(project: dict[str, Any]) -> None:
    assert project["name"] == DISTRIBUTION
    assert "version" in project["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", tuner.__version__)


def test_the_readme_and_the_page_of_the_client_say_how_to_install(root: Path) -> None:
    for page in ("README.md", "docs/client.md"):
        assert any(COMMAND.findall((root / page).read_text())), page


def test_an_extra_is_named_in_quotes_that_a_shell_needs() -> None:
    wheel = f"./{WHEEL}{tuner.__version__}-py3-none-any.whl"
    assert install_command("server") == f"{PIP} '{wheel}[server]', or '.[server]' in a checkout"


def test_every_file_that_the_notice_names_exists(root: Path) -> None:
    named = re.findall(r"`([\w/]+/[\w/.]+)`", (root / "NOTICE").read_text())
    assert len(named) > 5
    assert [name for name in named if not (root / name).exists()] == []


def test_what_is_vendored_is_what_the_notice_says(root: Path) -> None:
    script = root / "tuner/api/static/vendor/echarts-6.1.0.min.js"
    notice = (root / "NOTICE").read_text()
    assert script.name in notice
    assert hashlib.sha256(script.read_bytes()).hexdigest() in notice
    assert script.name in (root / "tuner/api/static/charts.js").read_text()
