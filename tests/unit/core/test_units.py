from __future__ import annotations

import pytest

from tuner.core.units import figure


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "", "0"),
        (12.0, "", "12"),
        (999.0, "bytes", "999 B"),
        (268_435_456.0, "bytes", "268.4 MB"),
        (4.8e12, "bytes", "4.8 TB"),
        (12_345.0, "", "12.35 k"),
        (51.4567, "%", "51.46 %"),
        (12_345.0, "us", "12.35 ms"),
        (68_080.0, "ns", "68.08 µs"),
        (12.5, "us", "12.5 µs"),
        (312.0, "ns", "312 ns"),
        (-2_000_000.0, "", "-2 M"),
        (0.03215, "", "0.03215"),
    ],
)
def test_a_figure_is_short_and_keeps_its_unit(value: float, unit: str, text: str) -> None:
    assert figure(value, unit) == text
