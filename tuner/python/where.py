"""Where jobs run: on the configured service, otherwise in this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tuner.client.connection.config import configured_url
from tuner.client.connection.credentials import token_for
from tuner.client.connection.http import Client
from tuner.client.errors import Unreachable
from tuner.errors import TunerError
from tuner.versions import install_command


@contextmanager
def connect(
    url: str | None = None, *, token: str | None = None, data: str | Path | None = None, gpu: str | None = None
) -> Iterator[Client]:
    """A client for the duration of the block, so that many pairs are tuned over one connection.

    Args:
        url: of a service; by default `TUNER_URL`, then the configuration file's. If there is none, or `data` is given,
            the jobs run in this process, which opens no port.
        token: for that service; by default `TUNER_TOKEN`, then the one that `tuner-client login` stored.
        data: in this process: the folder of database and kernels; by default `TUNER_DATA`, then one in the
            user's cache folder.
        gpu: in this process: as in `tuner serve --gpu`.

    Raises:
        Unreachable: no service is configured, and this installation does not include one, or its folder cannot be used.
    """
    url = url or (None if data is not None else configured_url())
    if url is not None:
        with Client(url, token=token or token_for(url)) as client:
            yield client
        return
    try:
        with warnings.catch_warnings():
            # Optuna's own bars would need widgets in a notebook; they are not shown here.
            warnings.filterwarnings("ignore", message="IProgress not found")
            from tuner.python.here import service_here
    except ImportError as error:
        raise Unreachable(
            f"no service is configured, and {error.name} is missing to run jobs in this process; set TUNER_URL, or "
            f"{install_command('server')}"
        ) from error
    with ExitStack() as stack:
        try:
            here = stack.enter_context(service_here(None if data is None else Path(data), gpu, token))
        except TunerError as error:
            raise Unreachable(str(error)) from error
        yield here
