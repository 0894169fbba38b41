"""`tuner-client`: submits jobs, watches them, and downloads their results. Data goes to stdout, everything else to
stderr.

A command's module is imported on demand, so that `--help` and shell completion are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tuner import __version__
from tuner.client.connection.config import (
    DEFAULT_URL,
    URL_VARIABLE,
    check_environment,
    commands_defaults,
    read_config,
)  # fmt: skip
from tuner.client.errors import ClientError
from tuner.client.exits import ExitCode
from tuner.client.options.repeated import GivenOnce
from tuner.terminal import CannotPrint, printing
from tuner.versions import VERSION_MESSAGE

#: The module of each command, its name in that module, and its line in the list of commands.
COMMANDS = {
    "submit": ("submit", "submit", "Submits a job, or a batch of several rows, and prints its id."),
    "watch": ("job_commands", "watch", "Follows jobs until they end, then prints their results."),
    "status": ("job_commands", "status", "Prints the state of a job, and how accurate its forecasts were."),
    "jobs": ("job_commands", "jobs", "Lists jobs, newest first."),
    "batches": ("job_commands", "batches", "Lists batches, newest first."),
    "trials": ("job_commands", "trials", "Lists a job's trials."),
    "best": ("job_commands", "best", "Prints the result of a job, or the best one for a pair."),
    "study": ("study", "study", "Prints the schedules of a job side by side, as a table and a plot."),
    "cancel": ("job_commands", "cancel", "Cancels jobs; their trials are kept."),
    "pause": ("job_commands", "pause", "Pauses open jobs."),
    "resume": ("job_commands", "resume", "Resumes paused jobs."),
    "retry": ("job_commands", "retry", "Submits jobs again that failed or were cancelled."),
    "delete": ("job_commands", "delete", "Deletes ended jobs, with their trials, results and kernels."),
    "fetch": ("fetch", "fetch", "Fetches the results of jobs, or the packs of a lock file."),
    "export": ("export", "export", "Writes a job's trials in a format that other programs read."),
    "import": ("imports", "import_", "Imports the winners in a file of results into the service."),
    "samples": ("samples", "samples", "Prints the raw samples of a measured trial as JSON."),
    "counters": ("inspect", "counters", "Prints the hardware counters of a measured trial."),
    "trace": ("inspect", "trace", "Writes the in-kernel trace of a measured trial of a generated kernel."),
    "estimate": ("estimate", "estimate", "Estimates how much a model would gain, before anything is tuned."),
    "tune-model": ("tune_model", "tune_model", "Tunes the feed-forward blocks of a Hugging Face model."),
    "pack": ("packs.making", "pack", "Builds a pack from finished jobs."),
    "update": ("packs.making", "update", "Requests the packs of a lock file again, and shows what changed."),
    "show": ("packs.show", "show", "Prints the contents of a pack."),
    "diff": ("packs.show", "diff", "Prints the differences between two packs."),
    "verify": ("packs.verify", "verify", "Checks a pack, and runs its kernels on this machine's card."),
    "login": ("login", "login", "Stores a token for the service at --url."),
    "logout": ("login", "logout", "Removes the token for the service at --url."),
    "cmake-dir": ("job_commands", "cmake_dir", "Prints the folder to use as CMake's Tuner_DIR."),
    "completion": ("completion", "completion", "Prints a shell script that completes commands and options."),
}


class _Commands(GivenOnce, click.Group):
    """Loads commands on demand; turns the client's errors into a line on stderr and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their typical use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, with the configuration file's values as its defaults."""
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"tuner.client.commands.{module}"), name)
        if ctx.default_map and cmd_name in ctx.default_map:
            ctx.default_map[cmd_name] = commands_defaults(command, ctx.default_map[cmd_name], cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, _, words) in COMMANDS.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the environment and the configuration file, over which options and the environment have priority."""
        try:
            check_environment()
            extra.setdefault("default_map", read_config(tables=COMMANDS))
        except ClientError as error:
            raise click.UsageError(str(error)) from error
        return super().make_context(info_name, args, parent, **extra)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Parses the command line, which may only request help, and runs the command."""
        try:
            with printing():
                return super().main(*args, **extra)
        except CannotPrint as error:
            click.echo(f"tuner-client: {error}", err=True)
            raise SystemExit(ExitCode.FAULT) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except ClientError as error:
            click.echo(f"tuner-client: {error}", err=True)
            ctx.exit(error.exit_code)
        except (KeyError, TypeError, AttributeError, ValueError):
            # A response of this service has these fields. A response without a version may come from another service.
            if getattr(ctx.obj, "is_known", True):
                raise
            click.echo(
                (f"tuner-client: the server at {ctx.obj.url} is not a tuner service, or is an older version"), err=True
            )
            ctx.exit(ExitCode.UNREACHABLE)


@click.group(cls=_Commands, epilog="Exit codes: " + "; ".join(f"{code:d} {code.meaning}" for code in ExitCode) + ".")
@click.option("--url", envvar=URL_VARIABLE, default=DEFAULT_URL, show_default=True, help="The service's address.")
@click.version_option(__version__, message=VERSION_MESSAGE)
@click.pass_context
def main(ctx: click.Context, url: str) -> None:
    """Client of a tuner service, which finds fast kernels for pairs and chains of ops."""
    from tuner.client.connection.credentials import token_for
    from tuner.client.connection.http import Client

    ctx.obj = ctx.with_resource(Client(url, token=token_for(url)))


if __name__ == "__main__":
    main()
