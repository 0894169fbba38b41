"""User-supplied programs are checked before any search."""

from __future__ import annotations

import pickle
from dataclasses import replace
from threading import Lock
from typing import Any, cast

import pytest

from tests.support.attentions import attention
from tuner.core.problem.asked import workload_of
from tuner.core.trial.reports.baselines import CudaSource, KernelLaunch, PythonFunction, given_tensors
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair
from tuner.python.baselines import Program, baselines_of

PAIR = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=128, gated=True, bias=True)
LAUNCH = KernelLaunch(kernel="up", grid=(4, 1, 1), block=(128, 1, 1), arguments=("x", "up.weight", "up", 16, 0.5))
SOURCE = CudaSource(text='extern "C" __global__ void up(float *x) {}', launches=(LAUNCH,))


def test_a_function_is_given_the_tensors_that_it_names_and_keeps_its_defaults() -> None:
    scale = 3

    def mine(x: int, down_weight: int, scaled: int = 2) -> int:
        return x * down_weight * scaled * scale

    (found,) = baselines_of(PAIR, {"mine": mine})
    assert isinstance(found.program, PythonFunction)
    assert found.program.arguments == ("x", "down.weight")
    assert pickle.loads(found.program.pickled)(x=5, down_weight=7) == 210


def test_one_that_takes_any_is_given_all() -> None:
    (found,) = baselines_of(PAIR, {"all": lambda **tensors: tensors})
    assert isinstance(found.program, PythonFunction)
    assert found.program.arguments == ("x", "up.weight", "up.bias", "down.weight", "down.bias")


def test_cuda_goes_as_it_is() -> None:
    (found,) = baselines_of(PAIR, {"cu": SOURCE})
    assert found.program is SOURCE


def changed(**launch: Any) -> CudaSource:
    return replace(SOURCE, launches=(replace(LAUNCH, **launch),))


@pytest.mark.parametrize(
    ("name", "program", "field", "said"),
    [
        ("", lambda x: x, "baselines", "name ''; use a name"),
        ("a" * 61, lambda x: x, "baselines", "60 characters"),
        ("mine", lambda x, w1: w1, "baselines.mine", "up_weight [1024, 256]"),
        ("mine", lambda *all: all, "baselines.mine", "*all, which is not a tensor"),
        ("mine", "mine.cu", "baselines.mine", "CudaSource"),
        ("mine", replace(SOURCE, launches=()), "baselines.mine.launches", "KernelLaunch"),
        (
            "mine",
            changed(kernel="down"),
            "baselines.mine.launches[0].kernel",
            ("'down', which the source does not define"),
        ),
        ("mine", changed(grid=(0, 1, 1)), "baselines.mine.launches[0].grid", "above 0"),
        ("mine", changed(block=(128,)), "baselines.mine.launches[0].block", "three whole numbers"),
        ("mine", changed(arguments=("y",)), "baselines.mine.launches[0].arguments", "up.weight"),
    ],
)
def test_a_slip_is_said_with_its_field_and_what_would_be_right(
    name: str, program: Program | str, field: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        baselines_of(PAIR, {name: cast(Program, program)})
    assert refused.value.field == field
    assert said in str(refused.value)


def test_what_cannot_leave_the_process_is_refused() -> None:
    lock = Lock()
    with pytest.raises(InvalidInput, match="cannot be sent to the process at the card: TypeError"):
        baselines_of(PAIR, {"mine": lambda x: lock})


def test_what_an_attention_hands_on_cannot_be_checked_and_one_alone_is_given_its_tensors() -> None:
    with pytest.raises(InvalidInput, match=r"or for one attention( or \w+)* alone"):
        baselines_of(attention(d_out=512), {"mine": lambda q: q})
    assert baselines_of(attention(d_out=512), {}) == ()
    given = given_tensors(attention())
    (found,) = baselines_of(attention(), {"mine": lambda q, attention_keys, attention_lengths: q})
    assert isinstance(found.program, PythonFunction)
    assert found.program.arguments == ("q", "attention.keys", "attention.lengths")
    assert given["attention.lengths"].dtype == "int32"


def test_a_program_of_convolutions_is_given_images() -> None:
    pair = workload_of(
        {"kind": "conv-pair", "images": 2, "height": 8, "width": 8, "channels": 64}
        | {"first": {"filters": 64, "kernel": 3, "stride": 1}, "second": {"filters": 128, "kernel": 1, "stride": 1}}
    )
    baselines_of(pair, {"mine": lambda x, first_weight, first_bias, second_weight, second_bias: x})
    assert given_tensors(pair)["x"].shape == (2, 8, 8, 64)
