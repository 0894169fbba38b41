"""Errors on the client's side; each has its exit code."""

from __future__ import annotations

from tuner.client.exits import ExitCode
from tuner.errors import TunerError


class ClientError(TunerError):
    """The base class of the client's errors."""

    exit_code = ExitCode.FAULT


class Misconfigured(ClientError):
    """The client's configuration file cannot be used."""

    exit_code = ExitCode.USAGE


class NoResult(ClientError):
    """The requested result does not exist, or does not exist yet."""

    exit_code = ExitCode.NO_RESULT


class WeakerMatch(ClientError):
    """The result is not an exact match."""

    exit_code = ExitCode.WEAKER_MATCH


class LibraryWins(ClientError):
    """No generated kernel is faster than the library."""

    exit_code = ExitCode.LIBRARY_WINS


class UnfusedWins(ClientError):
    """Several launches of our kernel are faster than one."""

    exit_code = ExitCode.UNFUSED_WINS


class NotVerified(ClientError):
    """A pack's kernels do not run here, or give wrong results."""

    exit_code = ExitCode.NOT_VERIFIED


class Unreachable(ClientError):
    """The server does not respond, or cannot handle requests at the moment."""

    exit_code = ExitCode.UNREACHABLE


class Refused(ClientError):
    """The server refused the request, or the client refused an artifact."""

    exit_code = ExitCode.REFUSED


class JobFailed(ClientError):
    """The job failed or was cancelled."""

    exit_code = ExitCode.JOB_FAILED


class Simulated(ClientError):
    """A simulated result has no binary."""

    exit_code = ExitCode.SIMULATED


class TimedOut(ClientError):
    """The job or inspection did not end within the time limit."""

    exit_code = ExitCode.TIMEOUT


class Incompatible(ClientError):
    """The service or the artifact has a version that this client does not know."""

    exit_code = ExitCode.INCOMPATIBLE


class NoToken(ClientError):
    """The service requires a token, and none was given or it is not accepted."""

    exit_code = ExitCode.NO_TOKEN


class NothingSeen(ClientError):
    """The counters or the trace of a trial could not be taken."""

    exit_code = ExitCode.NOTHING_SEEN
