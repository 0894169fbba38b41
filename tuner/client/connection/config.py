"""The client's configuration file: TOML with a key for each option, a table for each command.

Options have priority over environment variables, and those over the file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from tuner.client.errors import Misconfigured

#: The default address of the service.
DEFAULT_URL = "http://127.0.0.1:8000"
#: The environment variable that names another file.
CONFIG_VARIABLE = "TUNER_CONFIG"
#: The environment variable with the address of the service.
URL_VARIABLE = "TUNER_URL"
#: The environment variable of the token, which has priority over a stored one.
TOKEN_VARIABLE = "TUNER_TOKEN"
#: Environment variables of the client.
VARIABLES = (URL_VARIABLE, CONFIG_VARIABLE, TOKEN_VARIABLE)
#: Keys outside any table.
_TOP = ("url",)
#: At or above this similarity, a name is probably a misspelt one: `TUNER_ULR` has 0.89.
_NEAR = 0.88


def misspelt(environment: Iterable[str], known: Collection[str]) -> list[str]:
    """A sentence for each environment variable that begins with TUNER_ and whose unknown name is similar to a known
    one."""
    found = []
    for name in sorted(name for name in set(environment) - set(known) if name.startswith("TUNER_")):
        near = get_close_matches(name, known, n=1, cutoff=_NEAR)
        found += [f"{name}: is not a setting; did you mean {one}?" for one in near]
    return found


def check_environment() -> None:
    """Checks the names of the client's environment variables.

    Raises:
        Misconfigured: names those that are misspelt.
    """
    if found := misspelt(os.environ, VARIABLES):
        raise Misconfigured("; ".join(found))


def config_path() -> Path:
    """The path of the file: from the environment, otherwise in the user's folder for configuration."""
    return Path(os.environ.get(CONFIG_VARIABLE) or Path(click.get_app_dir("tuner")) / "config.toml")


def read_config(tables: Collection[str] | None = None) -> dict[str, Any]:
    """The contents of the file; empty if there is none.

    Args:
        tables: the existing commands; None to skip the check.

    Raises:
        Misconfigured: it cannot be read, or contains unknown names.
    """
    path = config_path()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(CONFIG_VARIABLE):
            words = f"{CONFIG_VARIABLE} names {path}, which does not exist; unset it, or create the file"
            raise Misconfigured(words) from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}; fix it, or delete it") from error
    import tomllib

    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}") from error
    _check_top(found, tables, path)
    return found


def _check_top(found: Mapping[str, Any], tables: Collection[str] | None, path: Path) -> None:
    for key, value in found.items():
        if key in _TOP:
            if not isinstance(value, str):
                raise Misconfigured(f'{path}: {key} is {value!r}; use a string, e.g. {key} = "{DEFAULT_URL}"')
        elif not isinstance(value, dict):
            raise Misconfigured(
                f"{path}: there is no setting called {key!r}; outside of tables there is {', '.join(_TOP)}"
            )
        elif tables is not None and key not in tables:
            raise Misconfigured(f"{path}: [{key}] is not a command; there are {', '.join(tables)}")


def commands_defaults(command: click.Command, table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A command's table in click's form: keys are parameter names, while the file has the long names of options.

    Raises:
        Misconfigured: the command has no such option.
    """
    options = {
        long.removeprefix("--"): option.name
        for option in command.params
        if isinstance(option, click.Option)
        for long in option.opts
        if long.startswith("--")
    }
    inner = command.commands if isinstance(command, click.Group) else {}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in inner and isinstance(value, dict):
            found[key] = commands_defaults(inner[key], value, f"{name}.{key}")
        elif key in options and not isinstance(value, dict):
            found[str(options[key])] = value
        else:
            known = ", ".join([*options, *inner])
            raise Misconfigured(f"{config_path()}: [{name}] has no option {key!r}; there are {known}")
    return found


def configured_url() -> str | None:
    """The address of the service, from the environment, otherwise from the file; None if neither has it.

    Raises:
        Misconfigured: a variable of the environment is misspelt, or the file is wrong.
    """
    check_environment()
    return os.environ.get(URL_VARIABLE) or read_config().get("url")
