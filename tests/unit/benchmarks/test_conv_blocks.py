"""Rows of whole blocks of ResNet: their workloads, and the gain of two convolutions as one op."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.conv import blocks


def test_each_row_is_a_chain_that_ends_with_an_added_image() -> None:
    rows = blocks.blocks(4)
    assert len({row.name for row in rows}) == len(rows) == 20
    for row in rows:
        workload = row.workload().to_workload()
        last = workload.tile_ops[-1]
        assert last.residual_source
        assert last.m % 4 == 0


@pytest.mark.parametrize(
    ("kind_us", "gain"),
    [
        ({"library": 9.0, "two_launches": 10.0, "fused": 8.0, "joined": 6.4}, 1.25),
        ({"library": 5.0, "fused": 8.0}, None),
    ],
)
def test_the_gain_is_over_the_fastest_other_kernel_of_ours(
    monkeypatch: pytest.MonkeyPatch, kind_us: dict[str, float], gain: float | None
) -> None:
    monkeypatch.setattr(blocks, "figures_of", lambda _: {"kind_us": kind_us})
    ended: Any = None
    assert blocks.line_of(blocks.blocks(1)[0], ended)["joined_gain"] == gain
