"""A repeated option is refused with both values, by every command of both programs."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tuner.cli import main as server
from tuner.client.cli import main as client
from tuner.demo import main as demo

PROGRAMS = {"tuner": server, "tuner-client": client}


@pytest.mark.parametrize(
    ("program", "line", "words"),
    [
        (server, "serve --gpu simulated:h200 --gpu simulated:a100", "--gpu is given twice, with simulated:h200 and"),
        (server, "db --help backup --data a -- x", ""),
        (
            server,
            "token create --owner a --owner b --owner c",
            "--owner is given 3 times, with a, b and c; give it once",
        ),
        (server, "explain LINE --m 16 --d-in 5 --m 32", "--m is given twice, with 16 and 32"),
        (client, "--url http://a --url http://b jobs", "--url is given twice, with http://a and http://b"),
        (client, "submit --m 1 --m=2", "--m is given twice, with 1 and 2"),
        (client, "submit --trials 5 ffn --m 1 --trials 6", "--trials is given twice, with 5 and 6"),
        (client, "tune-model pyproject.toml -o a --output b", "--output is given twice, with a and b"),
        (client, "tune-model pyproject.toml -o a --between --no-between", "both --between and --no-between are given"),
        (client, "fetch best --job a --job b", "--job is given twice, with a and b"),
        (client, "--url http://127.0.0.1:1 cmake-dir", ""),
        (demo, "--trials 3 --trials 3", "--trials is given twice, with 3 and 3"),
    ],
)
def test_a_repeated_option_is_refused_with_its_values(program: click.Command, line: str, words: str) -> None:
    result = CliRunner().invoke(program, line.split())
    assert (result.exit_code, words in result.stderr) == (2 if words else 0, True), result.output
    assert ("given" in result.stderr) == bool(words)


def commands(command: click.Command, ctx: click.Context, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, click.Context(inner, parent=ctx), *path, name)


ALL = [(name, *path) for name, main in PROGRAMS.items() for path in commands(main, click.Context(main))]


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_each_option_of_every_command_is_checked(path: tuple[str, ...]) -> None:
    program, *names = path
    command: click.Command = PROGRAMS[program]
    ctx = click.Context(command)
    for name in names:
        assert isinstance(command, click.Group)
        inner = command.get_command(ctx, name)
        assert inner is not None
        command, ctx = inner, click.Context(inner, parent=ctx)
    several = [one for one in command.get_params(ctx) if isinstance(one, click.Option)]
    single = [one for one in several if not (one.multiple or one.is_flag)]
    for option in single[:3]:
        value = ["v"] * option.nargs
        line = [*names, option.opts[0], *value, option.opts[-1], *value]
        said = CliRunner().invoke(PROGRAMS[program], line).stderr
        assert "is given twice, with v" in said, said


def test_lists_flags_and_counts_may_be_repeated() -> None:
    line = "submit --label a --label b --json --json --m x"
    assert "--m" in CliRunner().invoke(client, line.split()).stderr
    assert "given twice" not in CliRunner().invoke(client, line.split()).stderr
