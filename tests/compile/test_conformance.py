"""The kernels of the GPU tests compile without a GPU, without spills or warnings.

The sample has every value of every axis of every engine; a few of its kernels are compiled here, and all of them in
tests/soak/kernels.py.
"""

from __future__ import annotations

import pytest

from tests.support.conformance.sources import CacheKernel, Kernel, kernels
from tests.support.conformance.table import CASES
from tests.support.covering import covering_values
from tests.support.lanes import one_in
from tests.support.reports import report_of

SAMPLE = covering_values(kernels(CASES), lambda kernel: kernel.values)


@pytest.mark.parametrize("kernel", one_in(18, SAMPLE), ids=lambda kernel: kernel.id)
def test_a_kernel_of_the_table_compiles_without_spills_or_warnings(kernel: Kernel | CacheKernel) -> None:
    resources = report_of(kernel.source, "sm_90a").resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
