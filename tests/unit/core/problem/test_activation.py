"""All forms of an activation compute the same function."""

from __future__ import annotations

import copy
import ctypes
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.emulated.source import HERE, built
from tuner.core.problem.activation import OF_TRANSFORMERS, Activation, canonical, names_of
from tuner.core.problem.rows.activation import ActivationRow
from tuner.errors import InvalidInput
from tuner.workers.source.render import config_types, inlined
from tuner.workers.source.rows import activate_by_number

Array = np.ndarray[Any, Any]

#: Values at -1, 0 and 2.
KNOWN = {
    "identity": [-1, 0, 2],
    "relu": [0, 0, 2],
    "gelu": [-0.158808, 0, 1.954598],
    "silu": [-0.268941, 0, 1.761594],
}


def on_the_device(rows: list[ActivationRow]) -> Any:
    """The rows' CUDA code compiled as C++, for a value and an activation's number."""
    files = [config_types(), (HERE / "ptx.h").read_text(), inlined("logistic.cuh")]
    out = 'extern "C" float activated(float x, int number) { return activate(x, number); }'
    function = built("\n".join([*files, activate_by_number(rows), out])).activated
    function.argtypes, function.restype = (ctypes.c_float, ctypes.c_int), ctypes.c_float
    return function


@pytest.mark.parametrize("activation", list(Activation))
def test_the_host_has_known_values_and_propagates_nan(activation: Activation) -> None:
    *values, last = activation.row.host(np, np.array([-1.0, 0.0, 2.0, np.nan]))
    np.testing.assert_allclose(values, KNOWN[activation], atol=1e-6)
    assert np.isnan(last)


def test_the_device_computes_what_the_host_does() -> None:
    device = on_the_device([one.row for one in Activation])
    x = np.concatenate([np.linspace(-10, 30, 601), np.geomspace(1e-30, 1e4, 69), -np.geomspace(1e-30, 10, 61)])
    x = x.astype(np.float32).astype(np.float64)
    for activation in Activation:
        found = np.array([device(value, activation.row.number) for value in x])
        np.testing.assert_allclose(found, activation.row.host(np, x), rtol=1e-5, atol=1e-5)
        assert np.isnan(device(float("nan"), activation.row.number))


def test_another_text_for_the_device_is_found() -> None:
    other = replace(Activation.SILU.row, device="times_logistic(x, 1.01f * x)")
    assert abs(on_the_device([other])(2.0, other.number) - Activation.SILU.row.host(np, np.float64(2))) > 1e-3


@pytest.mark.parametrize("activation", list(Activation))
def test_a_value_is_off_by_no_more_than_its_spread(activation: Activation) -> None:
    x, error = np.linspace(-20, 20, 4001), 1e-3
    off = np.abs(activation.row.host(np, x + error) - activation.row.host(np, x))
    assert (off <= activation.row.spread(np, x, np.full_like(x, error)) * (1 + 1e-9)).all()


@pytest.mark.parametrize("activation", list(Activation))
def test_a_member_is_one_object_wherever_it_goes(activation: Activation) -> None:
    assert Activation(str(activation)) is activation
    assert pickle.loads(pickle.dumps(activation)) is activation
    assert copy.deepcopy(activation) is activation
    assert all(canonical(name) is activation for name in names_of(activation))


def test_released_names_and_numbers_stay() -> None:
    """They occur in JSON, packs and the C API."""
    numbers = {str(one): one.row.number for one in Activation}
    assert numbers.items() >= {"identity": 0, "relu": 1, "gelu": 2, "silu": 3}.items()
    assert len(set(numbers.values())) == len(numbers)


def test_gelu_of_transformers_is_another_function() -> None:
    assert "gelu" not in OF_TRANSFORMERS
    assert OF_TRANSFORMERS["gelu_pytorch_tanh"] is Activation.GELU


@pytest.mark.parametrize("name", ["", "Relu", "2relu", "re-lu", "x; }"])
def test_a_name_that_c_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid name in C"):
        replace(Activation.RELU.row, name=name)
