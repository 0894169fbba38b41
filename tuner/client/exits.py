"""Exit codes of `tuner-client`: each has one meaning, so that a pipeline can tell them apart."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What ended the command."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """A code and its line in the documentation."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done"
    FAULT = 1, "an error in the client itself, or an interrupt"
    USAGE = 2, "the command line is invalid"
    NO_RESULT = 3, "no such job, no result yet, or none that matches"
    WEAKER_MATCH = 4, "a result was found, but it is not an exact match; nothing was written without --accept-nearest"
    UNREACHABLE = 5, "the server does not respond, or cannot serve requests now"
    REFUSED = (
        6,
        "the server refused the request, or the response is not what was requested, or has a different digest",
    )
    JOB_FAILED = 7, "the job failed or was cancelled"
    SIMULATED = 8, "the result is simulated, and has no cubin"
    TIMEOUT = 9, "the job or inspection did not end within the time limit"
    NOTHING_SEEN = 10, "the counters or the trace could not be collected; the message says why"
    INCOMPATIBLE = 11, "the service, or an artifact, has a version that this client does not support"
    NO_TOKEN = 12, "the service needs a token, but it is missing, unknown, expired or revoked"
    LIBRARY_WINS = 13, "the result is the vendor's library; nothing was written without --even-if-slower"
    NOT_VERIFIED = 14, "a pack's kernels do not run here, or their numbers are wrong"
    UNFUSED_WINS = 15, "the result is tuner's kernel in several launches; nothing was written without --accept-unfused"
