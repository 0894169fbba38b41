"""`login` and `logout`: the token that the client sends to a service."""

from __future__ import annotations

import sys

import click

from tuner.client.connection.credentials import keep_token
from tuner.client.connection.http import Client


@click.command()
@click.pass_obj
def login(client: Client) -> None:
    """Stores a token for the service at --url. Prompts for it, or reads it from a pipe."""
    secret = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    with Client(client.url, token=secret.strip()) as asking:
        who = asking.whoami()
    if not who["needs_token"]:
        click.echo(f"tuner-client: {client.url} needs no token, and none was stored", err=True)
        return
    path = keep_token(client.url, secret.strip())
    click.echo(f"tuner-client: {who['owner']}, role {who['role']}; the token is stored in {path}", err=True)


@click.command()
@click.pass_obj
def logout(client: Client) -> None:
    """Removes the token for the service at --url. The token itself stays valid until an admin revokes it."""
    keep_token(client.url, None)
