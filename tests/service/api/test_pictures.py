"""The geometry of the pictures of a ladder and of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.support.chains import block
from tuner.api.pictures.chain import draw_chain
from tuner.api.pictures.ladder import draw_ladder
from tuner.ops.gemm.pairs import ffn_pair
from tuner.wire.pages.pages import OpRow
from tuner.wire.responses.batches import GainView, LadderView, RungView


def ladder(ranges: Sequence[tuple[int, int, int | None, float | None]]) -> LadderView:
    """A ladder of (first row, last row, kernel, gain)."""
    rungs = [
        RungView(m_lo=lo, m_hi=hi, kernel=kernel, job_id="job-1", time_us=10.0, library_us=12.0, speedup=gain,
                 speedup_ci95=None if gain is None else (gain - 0.02, gain + 0.01), loss=0.0)
        for lo, hi, kernel, gain in ranges
    ]  # fmt: skip
    gains = [
        GainView(m=one.m_hi, time_us=10.0, library_us=12.0, speedup=one.speedup, speedup_ci95=one.speedup_ci95,
                 kernel=one.kernel)
        for one in rungs if one.speedup is not None
    ]  # fmt: skip
    return LadderView(
        number=0, workload="ffn", simulated=True, rungs=rungs, kernels=[], gains=gains, slack=0.01, least_kernels=0,
        reason="",
    )  # fmt: skip


def test_a_ladders_ranges_lie_side_by_side_and_each_gain_is_in_its_own() -> None:
    picture = draw_ladder(ladder([(1, 1, 0, 1.3), (2, 4, 0, 1.2), (5, 16, 1, 1.1), (17, 64, None, 1.0)]))
    assert picture is not None
    assert [one.title for one in picture.ranges] == [
        "1 to 4 rows: kernel 0", "5 to 16 rows: kernel 1", "17 to 64 rows: library"
    ]  # fmt: skip
    assert (picture.ranges[0].x, picture.ranges[-1].x + picture.ranges[-1].width) == (picture.left, picture.right)
    for one, following in pairwise(picture.ranges):
        assert one.x + one.width == pytest.approx(following.x)
    for point in picture.points:
        home = next(one for one in picture.ranges if one.x <= point.x <= one.x + one.width)
        assert home.kind == point.kind
        assert point.interval is not None
        assert picture.top <= point.interval[0] < point.y < point.interval[1] <= picture.bottom
    heights = [point.y for point in picture.points]
    assert heights == sorted(heights)
    assert heights[-1] == picture.even_y


def test_a_ladder_of_one_row_without_an_interval_has_a_picture_and_one_without_a_measurement_none() -> None:
    one = ladder([(1, 1, 0, 1.0)])
    picture = draw_ladder(one.model_copy(update={"gains": [one.gains[0].model_copy(update={"speedup_ci95": None})]}))
    assert picture is not None
    assert picture.points[0].interval is None
    assert picture.ranges[0].width == picture.right - picture.left
    assert draw_ladder(ladder([(1, 8, None, None)])) is None


def chain(starts: Sequence[int]) -> list[OpRow]:
    """The ops of a block, in launches that start at the ops `starts`."""
    rows = OpRow.all_of(block(16), None)
    launches = [sum(start <= place for start in starts) for place in range(len(rows))]
    return [row.model_copy(update={"launch": one}) for row, one in zip(rows, launches, strict=True)]


def test_a_chains_picture_has_its_ops_its_readers_and_a_cut_between_launches() -> None:
    picture = draw_chain(chain([0, 2]))
    assert picture is not None
    assert [box.name for box in picture.boxes] == ["o", "gate_up", "down", "qkv"]
    assert [one.title for one in picture.arrows] == [
        "gate_up reads o as its input", "down reads gate_up as its input", "down reads o as its residual",
        "qkv reads down as its input",
    ]  # fmt: skip
    assert picture.sentence == "2 launches compute 4 ops: o, gate_up; down, qkv."
    (border,) = picture.borders
    before, behind = picture.boxes[1:3]
    assert before.x + picture.box_width < border < behind.x
    first, second = picture.launches
    assert first.x + first.width < border < second.x
    assert second.x + second.width <= picture.width


def test_a_chain_in_one_launch_has_no_cut_and_one_without_a_schedule_no_launch() -> None:
    whole, unknown = draw_chain(chain([0])), draw_chain(OpRow.all_of(block(16), None))
    assert whole is not None
    assert unknown is not None
    assert (len(whole.launches), whole.borders) == (1, ())
    assert (unknown.launches, unknown.borders) == ((), ())
    assert draw_chain(OpRow.all_of(ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64), None)) is None
