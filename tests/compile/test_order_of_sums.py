"""Kernels with the same order of sums give a row the same bits on the CPU, whatever other rows there are; other kernels
do not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.cases import ordering, wgmma
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.lanes import soaked
from tuner.core.problem.workload import Activation, Workload
from tuner.core.proof.order_of_sums import order_of_sums
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.tiling import Tiling
from tuner.ops.gemm.pairs import ffn_pair

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

STATIC = ordering(2, assignment=Assignment.STATIC)
FEW, MANY, IN_PARTS = wgmma((16, 64, 64)), wgmma((64, 128, 128), num_stages=2), wgmma((16, 64, 64), split_k=(1, 3))


def ffn(m: int) -> Workload:
    return ffn_pair(m=m, d_in=192, d_hidden=384, d_out=128, activation=Activation.SILU, gated=True)


def left(m: int, tiling: Tiling, rows: int) -> tuple[str, np.ndarray]:
    """The order of sums of a kernel for `m` rows, and its output Y for `rows` rows."""
    whole, chain = EmulatedChain(ffn(80)), EmulatedChain(ffn(m), rows=rows)
    chain.take_operands(whole)
    plans = plans_of(ffn(m), tiling, STATIC, is_fused=True)
    found = chain.run(tiling, plans)["down"]
    assert np.isnan(found[rows:]).all(), "rows after the last one are written"
    assert not np.isnan(found[:rows]).any()
    return order_of_sums(plans).text, found[:rows]


@pytest.mark.parametrize(
    "others", [((16, FEW, 13), (80, MANY, 7)), *soaked([(16, FEW, 1), (40, FEW, 39), (80, MANY, 70)])], ids=["", "more"]
)
def test_a_row_has_the_same_bits_under_every_kernel_of_one_order_and_every_number_of_rows(
    others: Sequence[tuple[int, Tiling, int]],
) -> None:
    order, wanted = left(80, MANY, 80)
    for m, tiling, rows in others:
        same, found = left(m, tiling, rows)
        assert same == order
        assert np.array_equal(found, wanted[:rows]), (m, tiling, rows)


# In CI, the test above has kernels of one order.
@pytest.mark.soak
def test_a_kernel_of_another_order_has_other_bits() -> None:
    order, wanted = left(80, MANY, 80)
    other, found = left(16, IN_PARTS, 16)
    assert other != order
    assert not np.array_equal(found, wanted[:16])
    np.testing.assert_allclose(found, wanted[:16], rtol=0.05, atol=0.01)
