"""`tuner token`, `tuner quota` and `tuner audit`: change the database directly, with or without a running server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.commands.options import (
    data_option,
    database_option,
    settings_of_place,
    settings_of_service,
    store_beside_servers,
)
from tuner.core.access.caller import LOCAL, Role
from tuner.core.access.quota import Quota, QuotaScope

if TYPE_CHECKING:
    from tuner.store import Store

_DAY_S = 24 * 3600.0


@contextmanager
def _store(data: Path | None, database_url: str | None, *, make: bool = False) -> Iterator[Store]:
    """The database of a service; a missing one is created only if requested, and never in a misspelled folder."""
    options = {"data": data, "database_url": database_url}
    with store_beside_servers(settings_of_place(options) if make else settings_of_service(options)) as store:
        yield store


def _day(seconds: float | None) -> str:
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


@click.group()
def token() -> None:
    """Creates, lists and revokes the tokens of a service. Once there is a token, the service requires one."""


@token.command()
@click.option("--owner", required=True, help="Its owner, e.g. alice; jobs submitted with it belong to her.")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    required=True,
    help=(
        "read: look at everything; submit: also run jobs; worker: only health, metrics and targets; admin: everything."
    ),
)
@click.option("--note", default="", help="Its purpose, as text.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days until it expires.  [default: never]")
@data_option
@database_option
def create(owner: str, role: str, note: str, days: float | None, data: Path | None, database_url: str | None) -> None:
    """Creates a token, and prints it to stdout, once. Only its SHA-256 is stored."""
    from tuner.store.access import audit, tokens

    now = time.time()
    expires_at = None if days is None else now + days * _DAY_S
    with _store(data, database_url, make=True) as store, store.write() as session:
        made, secret = tokens.create(session, owner, Role(role), now, note=note, expires_at=expires_at)
        audit.append(session, LOCAL, "token.create", made.id, now)
    click.echo(f"{made.id} of {owner}, role {role}; the token is shown only once:", err=True)
    click.echo(secret)


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document per line.")


@token.command("list")
@_as_json
@data_option
@database_option
def list_tokens(as_json: bool, data: Path | None, database_url: str | None) -> None:
    """Lists all tokens ever created, without their secrets."""
    from tuner.store.access import tokens

    with _store(data, database_url) as store, store.read() as session:
        found = tokens.every(session)
    if not as_json:
        click.echo(f"{'token':<16}  {'owner':<16}  {'role':<6}  {'made':<16}  {'expires':<16}  {'revoked':<16}  note")
    for one in found:
        dates = "  ".join(f"{_day(at):<16}" for at in (one.created_at, one.expires_at, one.revoked_at))
        line = f"{one.id:<16}  {one.owner:<16}  {one.role:<6}  {dates}  {one.note}"
        click.echo(json.dumps(asdict(one)) if as_json else line.rstrip())


@token.command()
@click.argument("token_id", metavar="TOKEN_ID")
@data_option
@database_option
def revoke(token_id: str, data: Path | None, database_url: str | None) -> None:
    """Revokes a token: a running server refuses it within a second."""
    from tuner.store.access import audit, tokens

    now = time.time()
    with _store(data, database_url) as store, store.write() as session:
        tokens.revoke(session, token_id, now)
        audit.append(session, LOCAL, "token.revoke", token_id, now)
    click.echo(f"{token_id} is revoked", err=True)


@click.group()
def quota() -> None:
    """Sets, lists and removes quotas: the maximum open jobs and card time of an owner or a project."""


_whose = (
    click.argument("scope", type=click.Choice([str(scope) for scope in QuotaScope])),
    click.argument("name"),
)


@quota.command("set")
@_whose[0]
@_whose[1]
@click.option(
    "--open-jobs",
    type=click.IntRange(min=0),
    help="Maximum number of queued and running jobs.  [default: any number]",
)
@click.option(
    "--card-hours", type=click.FloatRange(min=0), help="Maximum card time per day of these jobs.  [default: any]"
)
@data_option
@database_option
def set_quota(
    scope: str,
    name: str,
    open_jobs: int | None,
    card_hours: float | None,
    data: Path | None,
    database_url: str | None,
) -> None:
    """Sets the quota of NAME, an owner or a project; `*` applies to each without its own.

    A running server applies it within a second. Admins have no limits.
    """
    from tuner.store.access import audit, quotas

    made = Quota(scope=QuotaScope(scope), name=name, open_jobs=open_jobs, card_hours_per_day=card_hours)
    with _store(data, database_url) as store, store.write() as session:
        quotas.put(session, made)
        audit.append(session, LOCAL, "quota.set", f"{scope}/{name}"[:64], time.time())


@quota.command("drop")
@_whose[0]
@_whose[1]
@data_option
@database_option
def drop_quota(scope: str, name: str, data: Path | None, database_url: str | None) -> None:
    """Removes the quota of NAME."""
    from tuner.store.access import audit, quotas

    with _store(data, database_url) as store, store.write() as session:
        quotas.drop(session, QuotaScope(scope), name)
        audit.append(session, LOCAL, "quota.drop", f"{scope}/{name}"[:64], time.time())


@quota.command("list")
@_as_json
@data_option
@database_option
def list_quotas(as_json: bool, data: Path | None, database_url: str | None) -> None:
    """Lists the quotas."""
    from tuner.store.access import quotas

    with _store(data, database_url) as store, store.read() as session:
        found = quotas.every(session)
    if not as_json:
        click.echo(f"{'scope':<8}  {'name':<16}  {'open jobs':>9}  card hours a day")
    for one in found:
        most = ("any" if limit is None else f"{limit:g}" for limit in (one.open_jobs, one.card_hours_per_day))
        line = f"{one.scope:<8}  {one.name:<16}  {next(most):>9}  {next(most)}"
        click.echo(json.dumps(asdict(one)) if as_json else line)


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most entries.")
@_as_json
@data_option
@database_option
def audit(limit: int, as_json: bool, data: Path | None, database_url: str | None) -> None:
    """Lists who changed what, and when (UTC), newest first."""
    from tuner.store.access import audit

    with _store(data, database_url) as store, store.read() as session:
        found = audit.page(session, None, limit).items
    if not as_json:
        click.echo(f"{'when':<16}  {'owner':<16}  {'action':<12}  subject")
    for one in found:
        line = f"{_day(one.at):<16}  {one.owner or '-':<16}  {one.action:<12}  {one.subject}"
        click.echo(json.dumps(asdict(one)) if as_json else line)
