"""The machine code of every engine and form is unchanged: `make golden` renews the digests, and their diff shows which
kernels changed.

Kernels whose inputs are the recorded ones are not compiled, but for one of each engine and one small kernel, since
equal inputs give equal code (machine_code.py). A change of the device code or of the renderer compiles all that it
changes.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.compile.golden import CASES
from tests.compile.machine_code import ARCH, FILE, SOURCES, digest_of, inputs_of, is_same, versions
from tests.support.compiled import compile_source
from tests.support.lanes import soaked
from tests.support.reports import machine_code
from tests.support.tiling_builds import LIMIT_S, MEDIAN_LIMIT_S, compile_timed
from tuner.core.schedule.tiling import Engine
from tuner.core.trial.reports.same_kernels import lists_of
from tuner.workers.builder.nvrtc import nvrtc_version

WRITTEN: dict[str, Any] = json.loads(FILE.read_text())
RENEW = "review the changes of the source, then run `make golden`"
#: Always compiled.
SMALL = "append"

of_the_recorded_compiler = pytest.mark.skipif(
    nvrtc_version() != WRITTEN["compiler"],
    reason=f"the digests are of NVRTC {WRITTEN['compiler']}; the machine code of {nvrtc_version()} may differ",
)


@of_the_recorded_compiler
@pytest.mark.parametrize("every", [False, *soaked(True)])
@pytest.mark.parametrize("name", SOURCES)
def test_the_machine_code_is_what_it_was(name: str, every: bool) -> None:
    if every or name == SMALL or inputs_of(name) != WRITTEN["inputs"][name]:
        assert digest_of(name) == WRITTEN["kernels"][name], RENEW


#: How much longer a compile may take here than alone: the other test process may run on the same core, as its second
#: thread. benchmarks/results/cpu/ has the whole space on a quiet machine.
SHARED_CORE = 2.0


# In CI, the test above compiles a small kernel, and each whose inputs have changed.
@pytest.mark.soak
@of_the_recorded_compiler
@pytest.mark.parametrize("step", [5, *soaked(1)])
def test_a_kernel_of_any_engine_compiles_soon_and_cleanly_to_the_recorded_code(step: int) -> None:
    """The limit is in CPU seconds, so waiting for a CPU does not count."""
    names, seconds = [*CASES][::step], []
    assert {CASES[name][1].engine for name in names} == set(Engine)
    for name in names:
        row, cubin = compile_timed(*CASES[name], ARCH)
        assert (row["spill_bytes"], row["warnings"]) == (0, [])
        assert machine_code(cubin) == WRITTEN["kernels"][name], RENEW
        seconds.append(row["compile_s"])
    assert max(seconds) <= SHARED_CORE * LIMIT_S
    assert statistics.median(seconds) <= SHARED_CORE * MEDIAN_LIMIT_S


@pytest.mark.parametrize("kind", WRITTEN["versions"])
def test_the_digests_are_those_of_todays_device_text(kind: str) -> None:
    """Results of kernels with identical machine code therefore stay exact matches."""
    assert versions()[kind] == WRITTEN["versions"][kind], (
        "run `make golden`: it records whether the machine code is the same"
    )
    assert any(versions()[kind] in one for one in lists_of(kind))


def test_every_kernel_has_a_digest_of_its_own() -> None:
    assert list(WRITTEN["kernels"]) == list(WRITTEN["inputs"]) == list(SOURCES)
    assert WRITTEN["arch"] == ARCH
    assert len(set(WRITTEN["kernels"].values())) == len(set(WRITTEN["inputs"].values())) == len(SOURCES)


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
