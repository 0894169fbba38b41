from __future__ import annotations

import pytest

from tuner.core.bounds import dram_us, reference_us, tensor_us
from tuner.core.gpu import CATALOGUE
from tuner.core.workload import ffn_pair

H200 = CATALOGUE["h200"]


def test_few_rows_are_bound_by_the_weights_and_many_by_the_tensor_cores() -> None:
    few, many = (ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096) for m in (16, 1024))
    assert reference_us(few, H200) == dram_us(few, H200) == pytest.approx(48.99, abs=0.01)
    assert reference_us(many, H200) == tensor_us(many, H200) == pytest.approx(243.1, abs=0.1)
