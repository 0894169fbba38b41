"""What bounds a kernel, by shares of the data sheet's rates, and the advice for it."""

from __future__ import annotations

import pytest

from tuner.core.insight.advice import Bound, advise
from tuner.core.problem.gpu import CATALOGUE

H200 = CATALOGUE["h200"]


@pytest.mark.parametrize(
    ("dram", "tensor", "over_floor", "bound", "first"),
    [
        (0.85, 0.1, 1.4, Bound.DRAM, "try another raster"),
        (0.85, 0.1, 1.01, Bound.DRAM, "it reads little more than the minimum"),
        (0.85, 0.1, None, Bound.DRAM, "only moving fewer bytes helps, e.g"),
        (0.3, 0.9, 1.0, Bound.TENSOR, "use the wgmma engine"),
        (0.3, 0.2, 1.0, Bound.LATENCY, "look at the timeline"),
        (0.7, 0.2, 1.3, Bound.MIXED, "try another raster"),
        (0.2, 0.7, 1.0, Bound.MIXED, "overlap"),
    ],
)
def test_what_bounds_a_kernel_decides_what_is_to_be_tried(
    dram: float, tensor: float, over_floor: float | None, bound: Bound, first: str
) -> None:
    found = advise(
        H200,
        time_us=100.0,
        num_flops=tensor * H200.tensor_flops_per_s * 1e-4,
        moved_bytes=dram * H200.dram_bytes_per_s * 1e-4,
        over_floor=over_floor,
    )
    assert (found.bound, round(found.dram_share, 6), round(found.tensor_share, 6)) == (bound, dram, tensor)
    assert found.tries[0].startswith(first)
