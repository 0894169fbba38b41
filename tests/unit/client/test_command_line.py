"""The command line itself: its few imports, shell completion, the configuration file, and colours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tuner.client import Client
from tuner.client.cli import COMMANDS, main
from tuner.client.connection.config import VARIABLES, configured_url, misspelt
from tuner.client.errors import Misconfigured, Refused
from tuner.client.exits import ExitCode
from tuner.settings import Settings

#: Modules that take long to import, and that the list of commands does not need.
HEAVY = ("httpx", "rich", "json", "numpy", "optuna", "tuner.core", "tuner.packs", "asyncio", "ssl", "urllib.request")


def test_the_list_of_commands_is_printed_without_importing_any() -> None:
    program = (
        "import sys; from tuner.client.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"print(sorted(name for name in sys.modules if name.startswith({HEAVY!r})), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "submit" in result.stdout
    assert result.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_the_command_says_of_itself(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    words = COMMANDS[name][2].removesuffix(".")
    assert words.split()[0] == (command.help or "").split()[0], "its first word is different"
    assert words in CliRunner().invoke(main, ["--help"], terminal_width=200).stdout


def completed(script: str, *words: str) -> list[str]:
    """Bash's completions of the last word."""
    line = " ".join(["tuner-client", *words])
    program = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n_tuner_client_completion tuner-client\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True, env=environment)
    return found.stdout.split()


@pytest.mark.slow
def test_a_real_bash_completes_commands_options_and_choices() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    assert completed(script, "ca") == ["cancel"]
    assert completed(script, "export", "job-0", "--for") == ["--format"]
    assert completed(script, "export", "job-0", "--format", "t4") == ["t4", "t4-metadata"]


@pytest.mark.parametrize(("shell", "line"), [("zsh", "#compdef tuner-client"), ("fish", "complete --no-files")])
def test_other_shells_have_their_script(shell: str, line: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert line in result.stdout
    assert "_TUNER_CLIENT_COMPLETE" in result.stdout


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file, which does not exist yet."""
    monkeypatch.delenv("TUNER_URL", raising=False)
    monkeypatch.delenv("TUNER_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tuner").mkdir()
    return tmp_path / "tuner/config.toml"


def asked(*arguments: str) -> Result:
    """The error of a request to a port on which nothing listens; it contains the address."""
    return CliRunner().invoke(main, [*arguments, "jobs"])


def test_an_option_goes_before_the_environment_and_that_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('url = "http://127.0.0.1:1"\n')
    assert "http://127.0.0.1:1 does not answer" in asked().stderr
    assert configured_url() == "http://127.0.0.1:1"
    monkeypatch.setenv("TUNER_URL", "http://127.0.0.1:2")
    assert "http://127.0.0.1:2 does not answer" in asked().stderr
    assert configured_url() == "http://127.0.0.1:2"
    assert "http://127.0.0.1:3 does not answer" in asked("--url", "http://127.0.0.1:3").stderr


def test_the_file_has_a_table_for_each_command_with_its_options_as_they_are_spelled(config: Path) -> None:
    config.write_text('[jobs]\nstate = "searching"\n[fetch.best]\nmax-distance = -1\n[tune-model]\nmin-gain = 1000\n')
    # A value out of range is refused under the name of the option to which the file gave it.
    result = CliRunner().invoke(main, ["fetch", "best", "--job", "j"])
    assert (result.exit_code, "'--max-distance': -1.0 is not in the range" in result.stderr) == (ExitCode.USAGE, True)
    assert "--min-gain" in CliRunner().invoke(main, ["tune-model", str(config), "-o", "y"]).stderr
    config.write_text('[jobs]\nstate = "flying"\n')
    assert "'--state': 'flying' is not one of" in asked().stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url = 3\n", "url is 3; use a string"),
        ('adress = "x"\n', "there is no setting called 'adress'; outside of tables there is url"),
        ("[fly]\nhigh = 1\n", "[fly] is not a command; there are submit, watch"),
        ("[jobs]\nstat = 1\n", "[jobs] has no option 'stat'; there are state, owner"),
        ("[jobs.worst]\nm = 1\n", "[jobs] has no option 'worst'"),
        ("url = \n", "is not valid TOML: "),
        ("\udcff", "cannot be read: "),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_name(config: Path, text: str, message: str) -> None:
    config.write_bytes(text.encode(errors="surrogateescape"))
    result = asked()
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr
    assert str(config) in result.stderr


def test_the_environment_may_name_another_file_which_must_be_there(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = config.with_name("other.toml")
    monkeypatch.setenv("TUNER_CONFIG", str(other))
    assert "which does not exist; unset it, or create the file" in asked().stderr
    other.write_text('url = "http://127.0.0.1:4"\n')
    assert "http://127.0.0.1:4 does not answer" in asked().stderr


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_no_color_is_set(variables: dict[str, str], is_coloured: bool) -> None:
    program = "from rich.table import Table; from tuner.client.delivery.output import print_table as p\n" + (
        "t = Table(title='t'); t.add_column('c'); t.add_row('x', style='bold green'); p(t)"
    )
    parent, child = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color"} | variables
    with subprocess.Popen([sys.executable, "-c", program], stdout=child, env=environment) as process:
        assert process.wait(timeout=60) == 0
    os.close(child)
    text = os.read(parent, 65536).decode()
    os.close(parent)
    assert "x" in text
    assert ("32m" in text) == is_coloured


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["--scale", "--soft-cap", "--seconds", "--deadline", "--energy-within"])
def test_a_number_that_json_does_not_have_is_refused(option: str, number: str) -> None:
    result = CliRunner().invoke(main, ["submit", option, number])
    assert (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit)) == (2, True)
    assert option in result.stderr


def test_a_body_that_json_cannot_hold_is_an_error_of_the_clients_own() -> None:
    ops = [{"k": 1}, {"soft_cap": float("inf")}]
    itself: dict[str, Any] = {}
    itself["pair"] = itself
    for body, words in (
        ({"pair": {"m": float("nan")}}, "pair.m: is nan; use a finite number"),
        ({"pair": {"m": 1.5, "ops": ops}}, "pair.ops.1.soft_cap: is inf; use a finite"),
        ({"x": object()}, "not JSON serializable"),
        (itself, "Circular reference"),
    ):
        with pytest.raises(Refused, match=f"the request cannot be sent: .*{words}"):
            Client("http://127.0.0.1:9").submit(body)


@pytest.mark.parametrize("variable", ["TUNER_ULR", "TUNER_UR", "TUNER_URLS", "TUNER_TOKN", "TUNER_CONFG"])
def test_a_misspelt_variable_is_refused_by_commands_and_programs(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    result = CliRunner().invoke(main, ["jobs"])
    assert (result.exit_code, f"{variable}: is not a setting; did you mean TUNER_" in result.stderr) == (2, True)
    with pytest.raises(Misconfigured, match=variable):
        configured_url()


@pytest.mark.parametrize("variable", [f"TUNER_{name.upper()}" for name in Settings.model_fields])
def test_no_setting_of_the_service_is_taken_for_a_misspelt_one(variable: str) -> None:
    assert misspelt([variable], VARIABLES) == []
