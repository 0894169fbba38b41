"""CUDA's errors by name, with the kind of failure and a sentence. Needs no CUDA."""

from __future__ import annotations

import re

from tuner.core.trial.outcome import FailureKind

#: An error's name, without prefix and case, -> kind, sentence. Runtime and driver have different spellings of the same
#: error. Source: CUDA driver API, CUresult; CUDA runtime API, cudaError_t.
_KNOWN = {
    "illegaladdress": (FailureKind.ILLEGAL_ADDRESS, "the kernel accessed memory that does not exist"),
    "invalidaddressspace": (FailureKind.ILLEGAL_ADDRESS, "the kernel used an address in the wrong memory space"),
    "misalignedaddress": (FailureKind.MISALIGNED_ADDRESS, "the kernel accessed a misaligned address"),
    "assert": (FailureKind.DEVICE_ASSERT, "an assertion in the kernel failed"),
    "outofmemory": (FailureKind.OUT_OF_MEMORY, "the card's memory is full"),
    "memoryallocation": (FailureKind.OUT_OF_MEMORY, "the card's memory is full"),
    "launchfailed": (FailureKind.CRASH, "the kernel trapped, or died for a reason that the card does not report"),
    "launchfailure": (FailureKind.CRASH, "the kernel trapped, or died for a reason that the card does not report"),
    "launchtimeout": (FailureKind.HANG, "the driver stopped a kernel that ran too long"),
    "illegalinstruction": (FailureKind.CRASH, "the kernel executed an illegal instruction"),
    "launchoutofresources": (FailureKind.CRASH, "a CTA needs more registers or shared memory than there is"),
    "cooperativelaunchtoolarge": (FailureKind.CRASH, "the CTAs do not all fit on the card at once"),
}
_NAME = re.compile(r"\b(?:CUDA_ERROR_|cudaError)([A-Za-z_]+)")


def classify(message: str) -> tuple[FailureKind, str]:
    """Kind and reason of a failure with CUDA's `message`, which contains the error's name; otherwise it is an error of
    this program."""
    found = _NAME.search(message)
    if found is None:
        return FailureKind.INTERNAL, message
    kind, sentence = _KNOWN.get(found[1].replace("_", "").lower(), (FailureKind.CRASH, "CUDA refused to continue"))
    return kind, f"{sentence} ({found[0]})"
