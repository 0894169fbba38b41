"""Where `tuner-client login` stores tokens: a file that only its owner can read, with one token for each service."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tuner.client.connection.config import TOKEN_VARIABLE
from tuner.client.delivery.files import alone_with, write_atomically
from tuner.client.errors import ClientError
from tuner.errors import InvalidInput
from tuner.schedule_files.json_file import read_json


def credentials_path() -> Path:
    """The path of the file, in the user's folder for configuration."""
    return Path(click.get_app_dir("tuner")) / "credentials.json"


def _kept() -> dict[str, str]:
    path = credentials_path()
    try:
        if not path.stat().st_size:  # another login is about to create it
            return {}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ClientError(f"{path} cannot be read: {error.strerror}; set {TOKEN_VARIABLE} instead") from error
    try:
        found = read_json(path, "fix it, or delete it and log in again")
    except InvalidInput as error:
        raise ClientError(str(error)) from error
    if not isinstance(found, dict):
        raise ClientError(f"{path} holds no tokens; delete it and log in again")
    return {str(url): str(token) for url, token in found.items()}


def token_for(url: str) -> str | None:
    """The token for the service at `url`: from the environment, otherwise the stored one."""
    return os.environ.get(TOKEN_VARIABLE) or _kept().get(url.rstrip("/"))


def keep_token(url: str, token: str | None) -> Path:
    """Stores the token for the service at `url`, or removes it if None; returns the file."""
    path = credentials_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone_with(path):
            kept = _kept()
            kept.pop(url.rstrip("/"), None)
            if token is not None:
                kept[url.rstrip("/")] = token
            # The mode is restricted before anything is written, and kept when the file is replaced.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            path.chmod(0o600)
            write_atomically(path, json.dumps(kept, indent=1).encode())
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {error.strerror}; set {TOKEN_VARIABLE} instead") from error
    return path
