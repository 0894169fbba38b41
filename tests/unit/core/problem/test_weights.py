"""Formats of weights in fewer bits: packing is lossless, and values are where a lane expects them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.converted import pair
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme


@pytest.mark.parametrize("stored", WeightFormat)
def test_codes_and_factors_come_back(stored: WeightFormat) -> None:
    row, random = stored.row, np.random.default_rng(0)
    codes = random.integers(0, 1 << row.bits, (24, 512)).astype(np.uint8)
    kind = row.factor_bits(np)
    factors = random.integers(0, 256, (24, 512 // row.group)).astype(kind) if row.group else None
    zeros = (
        random.integers(0, 1 << 16, factors.shape).astype(np.uint16) if factors is not None and row.has_zeros else None
    )
    packed = row.packed(np, codes, factors, zeros)
    assert packed.shape == (24, row.row_bytes(512))
    found, found_factors, found_zeros = row.unpacked(np, packed, 512)
    assert (found == codes).all()
    assert (found_factors is None) == (factors is None)
    assert factors is None or (found_factors == factors).all()
    assert (found_zeros is None) == (zeros is None)
    assert zeros is None or (found_zeros == zeros).all()


@pytest.mark.parametrize("stored", WeightFormat)
def test_a_word_has_pairs_of_columns_in_its_halves(stored: WeightFormat) -> None:
    """Lane c of four: columns 2 c and 2 c + 1, then the same plus 8, then plus 16; for elements of 8 bits 4 c and
    4 c + 1, then the same plus 2, then plus 16."""
    row = stored.row
    assert sorted(row.order) == list(range(row.chunk))
    halves = 16 // row.bits
    for lane in range(4):
        word = row.order[lane * 2 * halves : (lane + 1) * 2 * halves]
        first, step = (4 * lane, 2) if row.element_bits == 8 else (2 * lane, 8)
        assert word[:halves] == tuple(first + 16 * (pair // 2) + step * (pair % 2) for pair in range(halves))
        assert word[halves:] == tuple(column + 1 for column in word[:halves])


def test_values_are_those_of_the_format() -> None:
    codes = np.array([[0, 8, 15, 1]], dtype=np.uint8)
    assert WeightFormat.INT4_G128.row.values(np, codes).tolist() == [[-8.0, 0.0, 7.0, -7.0]]
    assert WeightFormat.MXFP4.row.values(np, np.arange(7, 10, dtype=np.uint8)).tolist() == [6, 0, -0.5]
    assert WeightFormat.E4M3.row.values(np, np.array([[0x38, 0xB8, 0x01]], dtype=np.uint8)).tolist() == [[1, -1, 2**-9]]


def test_zero_points_are_taken_from_codes() -> None:
    row, dtype = WeightFormat.INT4_G64_ZP.row, Dtype.BF16.row
    codes, factors = np.full((1, 256), 11, np.uint8), np.array([[0x4000, 0x3F80] * 2], np.uint16)  # 2 and 1
    packed = row.packed(np, codes, factors, row.raised(np, np.array([[3, 5, 5, 3]], np.uint8), dtype))
    assert (row.known(np, packed, 256, dtype)[0, ::64] == [16, 6, 12, 8]).all()


def test_powers_of_two_are_those_of_the_format() -> None:
    row, dtype = WeightFormat.MXFP4.row, Dtype.BF16.row
    codes, powers = np.full((1, 256), 5, np.uint8), np.array([[127, 128, 120, 126] * 2], np.uint8)
    assert (row.known(np, row.packed(np, codes, powers), 256, dtype)[0, ::32] == [3, 6, 3 / 128, 1.5] * 2).all()


@pytest.mark.parametrize("scheme", [one for one in Scheme if one.row.weights])
def test_json_has_the_format(scheme: Scheme) -> None:
    workload = pair(scheme)
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.to_json()["ops"][0]["weights"] == scheme.row.weights
    assert workload.weight_bytes == sum(
        op.weight_rows * scheme.row.weights.row.row_bytes(op.k) for op in workload.tile_ops
    )


@pytest.mark.parametrize("stored", [one for one in WeightFormat if one.row.element_bits == 8], ids=lambda one: str(one))
def test_bytes_of_a_word_are_numbers_of_e4m3(stored: WeightFormat) -> None:
    """As the kernel converts them: the bytes of a lane's word, then those of the word that is rotated."""
    row = stored.row
    codes = np.random.default_rng(0).integers(0, 16, (1, 512)).astype(np.uint8)
    packed = row.packed(np, codes, np.ones((1, 512 // row.group), np.uint32))
    words = packed.reshape(-1)[:256].view(np.uint32)
    fours = np.stack([words, words >> np.uint32(4) | words << np.uint32(28)], axis=1)
    held = (fours & np.uint32(0x87878787)) + (fours >> np.uint32(7) & np.uint32(0x01010101))
    values = Dtype.FP8_E4M3.row.from_bits(np, held.view(np.uint8)).reshape(-1, 4, 2, 4)  # chunk, lane, half, byte
    in_order = values.transpose(0, 2, 1, 3).reshape(1, 512)
    assert (in_order * 512 == codes.astype(np.float32) - 8).all()


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"up\.k: is 320, but int4_g128 packs 256 weights of a row together"):
        pair(Scheme.INT4, d=320)
    with pytest.raises(InvalidInput, match=r"up\.weights: are stored in e4m3, which is converted to 16 bits"):
        QuantisedFfn(m=4, d_in=512, d_hidden=512, d_out=512, scheme=Scheme.W8A16, dtype=Dtype.FP8_E4M3).to_workload()
    with pytest.raises(InvalidInput, match=r"up\.weights: are stored in mxfp4, whose factors fp16 cannot represent"):
        QuantisedFfn(m=4, d_in=512, d_hidden=512, d_out=512, scheme=Scheme.MXFP4, dtype=Dtype.FP16).to_workload()
    up, down = pair(Scheme.INT4).tile_ops
    others = tuple(replace(op, weights=WeightFormat.INT4_G128_A8) for op in (up, down))
    with pytest.raises(InvalidInput, match=r"int4_g128_a8, which is converted to 8 bits, but the dtype is bf16") as no:
        replace(pair(Scheme.INT4), ops=others)
    assert no.value.remedy == "use fp8_e4m3, or leave weights out"
    with pytest.raises(InvalidInput, match="use one format for all products"):
        replace(pair(Scheme.INT4), ops=(up, replace(down, weights=None)))
