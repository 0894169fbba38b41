"""What the vendor library does of an epilogue, and what is left for a kernel after it."""

from __future__ import annotations

from itertools import product

import pytest

from tuner.core.problem.workload import Activation, GemmOp
from tuner.workers.source.library_epilogue import Epilogue, split_epilogue


def op(**options: object) -> GemmOp:
    return GemmOp(name="up", m=8, n=8, k=8, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", [Activation.IDENTITY, Activation.RELU, Activation.GELU])
@pytest.mark.parametrize("bias", [False, True])
def test_bias_and_a_known_activation_are_the_librarys_alone(activation: Activation, bias: bool) -> None:
    assert split_epilogue(op(activation=activation, bias=bias)) == (Epilogue(activation=activation, bias=bias), None)


def test_a_gate_and_a_silu_keep_the_bias_in_the_product() -> None:
    for gated in (False, True):
        first, rest = split_epilogue(op(activation=Activation.SILU, bias=True, gated=gated, residual=True))
        assert first == Epilogue(bias=True)
        assert rest == Epilogue(activation=Activation.SILU, gated=gated, residual=True)


def test_a_residual_is_the_librarys_where_no_activation_comes_between() -> None:
    assert split_epilogue(op(residual=True, bias=True)) == (Epilogue(residual=True, bias=True), None)
    first, rest = split_epilogue(op(residual=True, activation=Activation.RELU))
    assert (first, rest) == (Epilogue(activation=Activation.RELU), Epilogue(residual=True))


def test_everything_that_follows_a_row_scale_comes_after_it() -> None:
    first, rest = split_epilogue(op(row_scale=True, bias=True, activation=Activation.GELU, residual=True))
    assert first == Epilogue()
    assert rest == Epilogue(row_scale=True, bias=True, activation=Activation.GELU, residual=True)


def test_each_step_is_done_once() -> None:
    flags = ("bias", "gated", "residual", "row_scale")
    for activation, *chosen in product(Activation, *[(False, True)] * len(flags)):
        asked = op(activation=activation, **dict(zip(flags, chosen, strict=True)))
        steps = [step for step in split_epilogue(asked) if step]
        for flag in flags:
            assert sum(getattr(step, flag) for step in steps) == getattr(asked, flag)
        done = [step.activation for step in steps if step.activation is not Activation.IDENTITY]
        assert done == ([] if activation is Activation.IDENTITY else [activation])


def test_what_is_left_to_do_after_the_library_is_said_in_the_order_in_which_it_is_done() -> None:
    rest = split_epilogue(op(activation=Activation.SILU, row_scale=True, bias=True, gated=True))[1]
    assert rest is not None
    assert rest.describe() == "scale the rows, add the bias, apply silu, multiply by the up projection"
