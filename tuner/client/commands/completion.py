"""`tuner-client completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "tuner-client"
#: Set by the script when the shell requests completions.
_VARIABLE = "_TUNER_CLIENT_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints the script for a shell: `source <(tuner-client completion bash)`."""
    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source())
