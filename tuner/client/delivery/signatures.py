"""Checks that the pinned key signed a download."""

from __future__ import annotations

import click

from tuner.client.errors import Refused
from tuner.errors import InvalidInput
from tuner.packs.signing import SigningUnavailable, WrongSignature, check_key, verify


def pinned(key: str | None) -> str | None:
    """Parses a public key from an option.

    Raises:
        click.UsageError: it is not a key.
    """
    try:
        return None if key is None else check_key(key)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error


def check_signed(data: bytes, signature: bytes, key: str, *, is_demanded: bool = True) -> bool:
    """Checks that `key` signed `data`, given the signature file `signature`; False if the library for that is missing.

    Raises:
        Refused: the signature is wrong.
        click.UsageError: the library is not installed, and the check was required.
    """
    try:
        verify(data, signature, key)
        return True
    except WrongSignature as error:
        raise Refused(str(error)) from error
    except SigningUnavailable as error:
        if is_demanded:
            raise click.UsageError(str(error)) from error
        click.echo(f"tuner-client: the signature was not verified: {error}", err=True)
        return False
