"""The row of an element type is right: its conversions are checked value by value."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from tuner.core.problem.dtype import ELEMENTS, Dtype
from tuner.core.problem.rows.dtype import OperandRow
from tuner.errors import InvalidInput

Array = np.ndarray[Any, Any]


def values_of(dtype: Dtype) -> Array:
    """The float64 values of all bit patterns."""
    bits = np.arange(2**dtype.row.bits, dtype=np.uint64).astype(dtype.row.bits_name)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.asarray(dtype.row.from_bits(np, bits)).astype(np.float64)


def rounded(dtype: Dtype, values: Array) -> Array:
    bits = dtype.row.to_bits(np, values.astype(np.float32))
    assert bits.dtype == np.dtype(dtype.row.bits_name)
    return np.asarray(dtype.row.from_bits(np, bits)).astype(np.float64)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_each_value_is_its_own_rounding(dtype: Dtype) -> None:
    every = values_of(dtype)
    finite = every[np.isfinite(every)]
    assert (rounded(dtype, finite) == finite).all()


class _Flushing(np.ndarray[Any, Any]):
    """Computes like CuPy's kernels (built with -ftz=true): a subnormal float32 counts as 0."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        found = getattr(ufunc, method)(*map(_flushed, inputs), **kwargs)
        return _flushed(found).view(_Flushing)


def _flushed(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype != np.float32:
        return array if isinstance(value, np.ndarray) else value
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0), array)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_card_that_flushes_subnormal_numbers_reads_and_writes_the_same(dtype: Dtype) -> None:
    every = values_of(dtype)
    is_normal = np.isfinite(every) & (np.abs(every) >= np.finfo(np.float32).tiny)
    bits = np.arange(2**dtype.row.bits, dtype=np.uint64).astype(dtype.row.bits_name)[is_normal]
    assert len(bits) > 2**dtype.row.bits * 0.9
    read = np.asarray(dtype.row.from_bits(np, bits.view(_Flushing))).astype(np.float64)
    assert (read == every[is_normal]).all()
    assert (np.asarray(dtype.row.to_bits(np, read.astype(np.float32).view(_Flushing))) == bits).all()


@pytest.mark.parametrize("dtype", list(Dtype))
def test_what_lies_between_two_goes_to_the_nearest(dtype: Dtype) -> None:
    every = values_of(dtype)
    sorted_ = np.unique(every[np.isfinite(every)])
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(20_000).astype(np.float32).astype(np.float64)
    place = np.searchsorted(sorted_, drawn)
    nearest = np.minimum(np.abs(sorted_[place] - drawn), np.abs(sorted_[place - 1] - drawn))
    assert (np.abs(rounded(dtype, drawn) - drawn) == nearest).all()


@pytest.mark.parametrize("dtype", list(Dtype))
def test_roundoff_and_smallest_step_are_those_of_the_values(dtype: Dtype) -> None:
    every = values_of(dtype)
    finite = np.unique(every[np.isfinite(every)])
    from_one = finite[(finite >= 1) & (finite <= 2)]
    assert np.diff(from_one).max() / 2 == dtype.row.roundoff
    assert np.diff(finite).min() == dtype.row.smallest_step


@pytest.mark.parametrize("dtype", list(Dtype))
def test_the_bits_of_its_nan_are_one(dtype: Dtype) -> None:
    bits = np.array([dtype.row.nan_bits], dtype=dtype.row.bits_name)
    assert np.isnan(np.asarray(dtype.row.from_bits(np, bits)).astype(np.float64)).all()


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_member_is_one_object_wherever_it_goes(dtype: Dtype) -> None:
    assert Dtype(str(dtype)) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert json.dumps(dtype) == f'"{dtype}"'


def test_released_names_and_numbers_stay() -> None:
    """They occur in JSON, packs and the C API."""
    numbers = {name: row.number for name, row in ELEMENTS.items() if row.number < 128}
    assert numbers == {"fp16": 0, "bf16": 1, "fp32": 2, "int32": 3, "fp8_e4m3": 4, "uint8": 5}


def test_a_name_of_no_row_says_so() -> None:
    with pytest.raises(ValueError, match="'fp4' is not a valid Dtype"):
        Dtype("fp4")


@pytest.mark.parametrize("change", [{"bits": 12}, {"bits": 8}])
def test_a_size_that_no_engine_takes_is_refused(change: dict[str, Any]) -> None:
    """Also an 8-bit type with a product kind that requires 16 bits."""
    with pytest.raises(InvalidInput, match="bits"):
        OperandRow(**{**vars(Dtype.FP16.row), **change})
