"""`tuner doctor`: checks whether the service can work here, and explains how to fix problems."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tuner.commands.options import data_option, database_option, settings_of, tls_option
from tuner.errors import TunerError

if TYPE_CHECKING:
    from tuner.dispatch.diagnosis import Check
    from tuner.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one check per line.")
@data_option
@database_option
@click.option("--scheduler", help="tls://HOST:PORT of a cluster to check as well.")
@tls_option
@click.option("--insecure", is_flag=True, default=None, help="Allow tcp:// beyond loopback.")
def doctor(as_json: bool, **options: Any) -> None:
    """Checks driver, CuPy, NVRTC, CUPTI, database and cluster, and prints how to fix problems.

    Exit code 1 means that the service cannot work like this. A warning means that no card of this machine is used, or
    that there are no counters.
    """
    from tuner.dispatch.diagnosis import Finding, diagnose_scheduler, diagnose_workers

    settings = settings_of(options)
    checks = [*diagnose_workers(), _database(settings), _network()]
    if settings.scheduler is not None:
        checks.append(diagnose_scheduler(settings.scheduler, settings.tls, insecure=settings.insecure))
    printed = dict[str, str]()
    for check in checks:
        if as_json:
            click.echo(json.dumps(asdict(check)))
            continue
        click.echo(f"{check.finding:<4}  {check.name:<8}  {check.found}")
        if check.remedy:
            first = printed.setdefault(check.remedy, check.name)
            click.echo(f"{'':<16}-> {check.remedy if first == check.name else f'as for {first}'}")
    if any(check.finding is Finding.FAIL for check in checks):
        raise click.exceptions.Exit(1)


def _network() -> Check:
    """The environment's settings of proxies and certificates, which clients and webhooks of this machine use."""
    from tuner.client.connection.network import named_proxy
    from tuner.client.errors import Misconfigured
    from tuner.dispatch.diagnosis import Check, Finding

    try:
        found = {str(named_proxy(scheme, os.environ)) for scheme in ("http", "https")}
    except Misconfigured as error:
        return Check(name="network", finding=Finding.WARN, found=str(error), remedy="see the message above")
    through = ", ".join(sorted(found - {"None"})) or "no proxy"
    return Check(name="network", finding=Finding.OK, found=f"the environment sets {through}; loopback needs no proxy")


def _database(settings: Settings) -> Check:
    """Whether the database responds and can be written; a missing one is not created."""
    from tuner.dispatch.diagnosis import Check, Finding
    from tuner.store import Store
    from tuner.store.admin.migrate import revision_of
    from tuner.store.engine.engines import has_database

    if settings.database_url is None and not has_database(settings.data):
        return Check(name="database", finding=Finding.OK, found=f"none yet; tuner serve creates one in {settings.data}")
    try:
        store = Store.open(settings.data, settings.database_url, settings.lock_patience_s, shared=True)
    except TunerError as error:
        return Check(name="database", finding=Finding.FAIL, found=str(error), remedy="see the message above")
    try:
        with store.write():
            found = f"responds and accepts writes; its tables are at revision {revision_of(store.engine)}"
        return Check(name="database", finding=Finding.OK, found=found)
    except TunerError as error:
        remedy = "stop the program that locks it, or free some disk space"
        return Check(name="database", finding=Finding.FAIL, found=str(error), remedy=remedy)
    finally:
        store.close()
