"""The machine code of every engine and form is unchanged: `make golden` renews the digests, and their diff shows which
kernels changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compile.machine_code import ARCH, FILE, SOURCES, digest_of, is_same, machine_code, versions
from tests.support.compiled import compile_source
from tests.support.lanes import one_in
from tuner.core.trial.reports.same_kernels import lists_of
from tuner.workers.builder.nvrtc import nvrtc_version

WRITTEN: dict[str, Any] = json.loads(FILE.read_text())


@pytest.mark.skipif(
    nvrtc_version() != WRITTEN["compiler"],
    reason=f"the digests are of NVRTC {WRITTEN['compiler']}; the machine code of {nvrtc_version()} may differ",
)
@pytest.mark.parametrize("name", one_in(6, SOURCES))
def test_the_machine_code_is_what_it_was(name: str) -> None:
    assert digest_of(name) == WRITTEN["kernels"][name], "review the changes of the source, then run `make golden`"


@pytest.mark.parametrize("kind", WRITTEN["versions"])
def test_the_digests_are_those_of_todays_device_text(kind: str) -> None:
    """Results of kernels with identical machine code therefore stay exact matches."""
    assert versions()[kind] == WRITTEN["versions"][kind], (
        "run `make golden`: it records whether the machine code is the same"
    )
    assert any(versions()[kind] in one for one in lists_of(kind))


def test_every_kernel_has_a_digest_of_its_own() -> None:
    assert list(WRITTEN["kernels"]) == list(SOURCES)
    assert WRITTEN["arch"] == ARCH
    assert len(set(WRITTEN["kernels"].values())) == len(SOURCES)


def test_another_constant_is_another_digest_and_a_comment_is_not() -> None:
    source = '__device__ int held; extern "C" __global__ void one(int* to) { *to = held + 41; } // said'
    first, commented, other = (
        machine_code(compile_source(text, ARCH)[0])
        for text in (source, source.replace("said", "said otherwise"), source.replace("41", "42"))
    )
    assert first == commented
    assert first != other


def test_a_new_kernel_says_nothing_about_the_code_of_the_others() -> None:
    before = {"wgmma_decode": "one"}
    assert is_same(before, {**before, "quantised_blocks_wide": "another"}, "gemm")
    assert not is_same(before, {"wgmma_decode": "another"}, "gemm")
