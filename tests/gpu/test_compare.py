"""The kernels that check outputs agree with NumPy, and detect a single wrong element."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.source.tools import tools_source

pytest.importorskip("cupy")

from tuner.workers.gpu.launching.launch import fill
from tuner.workers.gpu.tensors.compare import Comparer
from tuner.workers.gpu.tensors.op_data import from_bits, to_bits
from tuner.workers.gpu.tensors.reference import Reference

#: More elements than threads, and a last warp that is not full.
SHAPE = 523, 1999


@pytest.fixture(scope="module")
def comparer(builder: Builder, gpu: Gpu) -> Comparer:
    tools = cupy.cuda.function.Module()
    tools.load(builder.build(tools_source(gpu.arch), gpu.arch).cubin)
    return Comparer(tools)


def output(dtype: Dtype) -> tuple[object, Reference]:
    """Random elements, and a reference from which each differs by 1 % at most."""
    bits = to_bits(cupy.random.default_rng(1).standard_normal(SHAPE, dtype=cupy.float32), dtype)
    values = from_bits(bits, dtype, as_type=cupy.float64)
    off = 1 + 0.01 * cupy.random.default_rng(2).standard_normal(SHAPE).clip(-1, 1)
    return bits, Reference(values=values * off, tolerance=(cupy.abs(values) * 0.0102).astype(cupy.float32))


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_right_output_has_no_bad_element_and_the_error_that_numpy_says(comparer: Comparer, dtype: Dtype) -> None:
    bits, want = output(dtype)
    got, wanted = from_bits(bits, dtype, as_type=cupy.float64).get(), want.values.get()
    found = comparer.difference(bits, dtype, want)
    assert found.num_bad == 0
    assert found.rel_error == pytest.approx(np.linalg.norm(got - wanted) / np.linalg.norm(wanted), rel=1e-9)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("places", [[0], [SHAPE[0] * SHAPE[1] - 1], [70_001, 70_000, 900_000]])
@pytest.mark.parametrize("wrong", [4.0, float("nan"), float("inf")])
def test_wrong_elements_are_counted_and_the_first_is_named(
    comparer: Comparer, dtype: Dtype, places: list[int], wrong: float
) -> None:
    bits, want = output(dtype)
    bits.ravel()[places] = to_bits(cupy.full(len(places), wrong, dtype=cupy.float32), dtype)  # type: ignore[attr-defined]
    found = comparer.difference(bits, dtype, want)
    assert (found.num_bad, found.first_bad) == (len(places), min(places))


def test_a_nan_that_is_wanted_is_bad_too(comparer: Comparer) -> None:
    bits, want = output(Dtype.FP16)
    want.values[3, 5] = float("nan")
    assert comparer.difference(bits, Dtype.FP16, want).num_bad == 1


def test_a_bit_that_differs_is_seen(comparer: Comparer) -> None:
    bits, _ = output(Dtype.FP16)
    other = bits.copy()  # type: ignore[attr-defined]
    assert comparer.are_same(bits, other, Dtype.FP16)
    other[-1, -1] ^= 1
    assert not comparer.are_same(bits, other, Dtype.FP16)


@pytest.mark.parametrize(("kind", "bits"), [("u1", 0x7F), ("u2", 0x7FFF), ("u4", 0xA5C3A5C3)])
def test_a_fill_stays_within_its_array(kind: str, bits: int) -> None:
    whole = cupy.zeros(1000, dtype=kind)
    fill(whole[100:900], bits)
    fill(whole[:0], bits)
    got = whole.get()
    assert (got[100:900] == bits).all()
    assert not got[:100].any()
    assert not got[900:].any()
