"""Which parts of an epilogue the vendor library computes, and which are left to later kernels."""

from __future__ import annotations

from itertools import product

import pytest

from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Activation
from tuner.ops.gemm.op import GemmOp
from tuner.workers.source.library_epilogue import Parts, describe, kernels_of, split_epilogue


def op(**options: object) -> GemmOp:
    return GemmOp(**{"name": "up", "m": 8, "n": 8, "k": 8, **options})  # type: ignore[arg-type]


def fields(parts: Parts) -> list[str]:
    return [part.field for part in parts]


def split(**options: object) -> tuple[list[str], list[str]]:
    fused, rest = split_epilogue(op(**options))
    return fields(fused), fields(rest)


@pytest.mark.parametrize("activation", [Activation.IDENTITY, Activation.RELU, Activation.GELU])
@pytest.mark.parametrize("bias", [False, True])
def test_bias_and_a_known_activation_are_the_librarys_alone(activation: Activation, bias: bool) -> None:
    wanted = ["bias"] * bias + ["activation"] * (activation is not Activation.IDENTITY)
    assert split(activation=activation, bias=bias) == (wanted, [])


def test_a_gate_and_a_silu_keep_the_bias_in_the_product() -> None:
    for gated in (False, True):
        fused, rest = split(activation=Activation.SILU, bias=True, gated=gated, residual=True)
        assert (fused, rest) == (["bias"], ["activation", *["gated"] * gated, "residual"])


def test_an_activation_that_the_library_knows_is_not_its_own_where_it_is_of_one_half() -> None:
    assert split(activation=Activation.RELU, gated=True) == ([], ["activation", "gated"])


def test_a_residual_is_the_librarys_where_no_activation_comes_between() -> None:
    assert split(residual=True, bias=True) == (["bias", "residual"], [])
    assert split(residual=True, activation=Activation.RELU) == (["activation"], ["residual"])


def test_everything_that_follows_a_row_scale_comes_after_it() -> None:
    fused, rest = split(row_scale=True, bias=True, activation=Activation.GELU, residual=True)
    assert (fused, rest) == ([], ["row_scale", "bias", "activation", "residual"])


def test_a_norm_is_in_front_of_the_product_and_the_cache_has_a_kernel_of_its_own() -> None:
    assert split(norm="x", bias=True) == (["bias"], [])
    rotary = Rotary(heads=2, kv_heads=1, head_dim=64, max_length=32)
    turned = op(n=128, norm="x", bias=True, rotary=rotary)
    fused, rest = split_epilogue(turned)
    assert (fields(fused), [kernel for kernel, _ in kernels_of(rest)]) == (["bias"], ["tuner_rotary"])


def test_each_step_is_done_once() -> None:
    flags = ("bias", "gated", "residual", "row_scale")
    for activation, *chosen in product(Activation, *[(False, True)] * len(flags)):
        asked = op(activation=activation, **dict(zip(flags, chosen, strict=True)))
        fused, rest = split_epilogue(asked)
        assert (*fused, *rest) == asked.parts
        assert [kernel for kernel, _ in kernels_of(rest)] == ["tuner_epilogue"] * bool(rest)


def test_what_is_left_to_do_after_the_library_is_said_in_the_order_in_which_it_is_done() -> None:
    asked = op(activation=Activation.SILU, row_scale=True, bias=True, gated=True)
    said = describe(asked, split_epilogue(asked)[1])
    assert said == "scale the rows, add the bias, apply silu, multiply by the up projection"
