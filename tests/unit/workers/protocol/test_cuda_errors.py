"""CUDA error messages of the runtime and of the driver are mapped to one kind and one sentence."""

from __future__ import annotations

import pytest

from tuner.core.trial.outcome import FailureKind
from tuner.workers.protocol.cuda_errors import classify


@pytest.mark.parametrize(
    ("driver", "runtime", "kind"),
    [
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", FailureKind.ILLEGAL_ADDRESS),
        ("CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", FailureKind.MISALIGNED_ADDRESS),
        ("CUDA_ERROR_ASSERT", "cudaErrorAssert", FailureKind.DEVICE_ASSERT),
        ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", FailureKind.OUT_OF_MEMORY),
        ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", FailureKind.CRASH),
        ("CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", FailureKind.HANG),
        ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction", FailureKind.CRASH),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", FailureKind.CRASH),
    ],
)
def test_both_spellings_are_one_kind_and_the_name_is_reported(driver: str, runtime: str, kind: FailureKind) -> None:
    for name in (driver, runtime):
        for message in (name, f"CudaError: {name}", f"{name}: as the library puts it; first seen as X"):
            found, reason = classify(message)
            assert found is kind
            assert f"({name})" in reason
    assert classify(driver)[1].split(" (")[0] == classify(runtime)[1].split(" (")[0]


def test_what_is_no_error_of_cudas_is_a_fault_of_ours_and_keeps_its_words() -> None:
    assert classify("KeyError: 'x'") == (FailureKind.INTERNAL, "KeyError: 'x'")
