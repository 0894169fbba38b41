"""What the benchmark of kernels alone says of two ways to time, without a card."""

from __future__ import annotations

from benchmarks.trust.alone import Figure, rows_of


def test_a_kernel_that_is_slower_alone_is_told() -> None:
    between = [[Figure(120.0, 1400.0), Figure(100.0, 1350.0)], [Figure(126.0, 1410.0), Figure(105.0, 1330.0)]]
    by_itself = [[Figure(120.0, 1400.0), Figure(110.0, 1300.0)]] * 2
    library, kernel = rows_of(["library", "fused"], between, by_itself)
    assert (library["between"], library["alone"]) == (1.0, 1.0)
    assert (kernel["between"], kernel["alone"]) == (1.2, 1.0909)
    assert (kernel["between_mhz"], kernel["alone_mhz"]) == (1340, 1300)
    assert kernel["alone_us"] == [110.0, 110.0]
