"""The simulated GPU's library against measurements: close in every group, and every kernel of it is included."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.simulator.library import CARDS, Compared, compared, drawn, groups, mean_error, mean_ratio
from tests.support.presets import LayerRun, decoder_layer
from tests.support.repository import ROOT
from tuner.core.problem.gpu import CATALOGUE
from tuner.ops.gemm.costs import LIBRARY_ELEMENTWISE_US, LIBRARY_NORM_US, LIBRARY_PRODUCT_US
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.workers.simulated.library import library_us

H100 = CATALOGUE["h100"]
#: Maximum mean error of a group's rows, and of the group's mean ratio.
ROW_BAR, GROUP_BAR = 0.09, 0.09


@pytest.fixture(scope="module")
def found() -> list[Compared]:
    return compared(ROOT / "benchmarks/results")


def test_in_every_group_of_measured_rows_the_model_is_near(found: list[Compared]) -> None:
    assert {(card, group) for card in CARDS for group in ("pairs", "chains", "layers")} <= set(groups(found))
    for group, some in groups(found).items():
        assert mean_error(some) < ROW_BAR, group
        assert abs(mean_ratio(some) - 1) < GROUP_BAR, group


def test_a_layers_norms_products_turn_and_attention_are_all_in_its_time() -> None:
    """A shard's run, as PyTorch and cuBLASLt launch it on an H100: 35 µs in benchmarks/results/h100."""
    run = decoder_layer("llama3-70b", sequences=1, max_length=512, tp=8, run=LayerRun.QKV_ATTENTION)
    qkv = run.tile_ops[0]
    without_norm = replace(run, ops=(replace(qkv, norm=""), *run.ops[1:]))
    assert library_us(run, H100) - library_us(without_norm, H100) == pytest.approx(LIBRARY_NORM_US, abs=0.1)
    attention = decoder_layer("llama3-70b", sequences=1, max_length=512, tp=8, run=LayerRun.ATTENTION)
    in_front_us = library_us(run, H100) - library_us(attention, H100)
    weights_us = 1e6 * 2 * qkv.weight_rows * qkv.k / H100.dram_bytes_per_s
    assert in_front_us > weights_us + LIBRARY_NORM_US + LIBRARY_PRODUCT_US + LIBRARY_ELEMENTWISE_US


def test_weights_stream_as_fast_where_tiles_leave_a_wave_unfilled() -> None:
    """8192 columns are 64 tiles for 132 SMs; 16896 columns are 132 tiles."""
    few, many = (ffn_pair(m=1, d_in=8192, d_hidden=n, d_out=8192) for n in (8192, 16896))
    per_byte = [(library_us(one, H100) - 2 * LIBRARY_PRODUCT_US) / one.weight_bytes for one in (few, many)]
    assert per_byte[0] == pytest.approx(per_byte[1], rel=0.01)


def test_products_side_by_side_wait_for_one_start() -> None:
    both = independent_pair((64, 512, 512), (64, 128, 512))
    assert library_us(both, H100) < 2 * LIBRARY_PRODUCT_US


def test_the_table_has_a_line_for_each_group(found: list[Compared]) -> None:
    text = drawn(found)
    assert len(re.findall(r"^\| h[12]00, ", text, re.MULTILINE)) == len(groups(found))
