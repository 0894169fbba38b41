"""Which convolutions are accepted, and the messages for others."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import Any

import pytest

from tests.support.convs import conv, pooling, product, workload
from tuner.core.problem.asked import pair_of, workload_of
from tuner.core.problem.epilogue.part import PLAIN
from tuner.core.problem.workload import Workload
from tuner.core.trial.job import Regime, default_regime
from tuner.errors import InvalidInput
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.gemm.op import GemmOp
from tuner.wire.requests.requests import TuneRequest

PAIR = {
    "kind": "conv-pair",
    "images": 2,
    "height": 9,
    "width": 12,
    "channels": 16,
    "first": {"filters": 24, "kernel": 3, "stride": 2},
    "second": {"filters": 32, "kernel": 1, "stride": 1},
}
CHAIN = {
    "kind": "chain",
    "m": 60,
    "ops": [conv("a", "x", height=9, width=12, stride=2), {"name": "b", "source": "a", "n": 8, "k": 24}],
}


@pytest.mark.parametrize(
    "asked",
    [
        PAIR | {"residual": True, "activation": "silu"},
        CHAIN,
        {"kind": "network-convs", "network": "resnet50", "stage": 2, "images": 4},
        {"kind": "network-convs", "network": "resnet50", "stage": 4, "run": "back", "images": 1},
        {"kind": "network-convs", "network": "vgg19", "stage": 5, "images": 1},
    ],
)
def test_what_is_asked_is_what_answers_spell(asked: dict[str, Any]) -> None:
    made = workload_of(asked)
    assert workload_of(pair_of(made)) == made
    assert Workload.from_json(made.to_json()) == made


def test_a_bottleneck_has_the_sizes_of_the_paper_and_adds_what_it_reads() -> None:
    made = workload_of({"kind": "network-convs", "network": "resnet50", "stage": 3, "images": 4})
    assert [(op.m, op.n, op.k) for op in made.tile_ops] == [(784, 256, 1024), (784, 256, 2304), (784, 1024, 256)]
    assert [op.read_names for op in made.tile_ops] == [("x",), ("conv1",), ("conv2", "x")]
    assert made.num_flops == 2 * 784 * (256 * 1024 + 256 * 2304 + 1024 * 256)
    inputs, weights, biases = 784 * 1024, 256 * 1024 * 2 + 256 * 2304, 256 + 256 + 1024
    assert made.compulsory_bytes == 2 * (inputs + weights + biases + 784 * 1024)


def test_a_first_block_halves_its_images_and_makes_the_shortcut_itself() -> None:
    made = workload_of({"kind": "network-convs", "network": "resnet50", "stage": 2, "run": "first", "images": 1})
    assert [(op.name, op.read_names, op.m, op.n, op.k) for op in made.tile_ops] == [
        ("conv1", ("x",), 56 * 56, 128, 256),
        ("conv2", ("conv1",), 28 * 28, 128, 9 * 128),
        ("shortcut", ("x",), 28 * 28, 512, 256),
        ("conv3", ("conv2", "shortcut"), 28 * 28, 512, 128),
    ]
    with pytest.raises(InvalidInput, match="blocks of vgg19 have no shortcut"):
        workload_of({"kind": "network-convs", "network": "vgg19", "stage": 1, "run": "first", "images": 1})


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"kernel": 33}, "a.kernel"),
        ({"kernel": 1, "padding": 1}, "a.padding"),
        ({"function": "average"}, "a.padding"),
        ({"stride": 0}, "a.stride"),
        ({"height": 1, "padding": 0}, "a.kernel"),
        ({"channels": 0}, "a.channels"),
        ({"images": 2**16, "height": 2**8, "width": 2**8}, "a.images"),
    ],
)
def test_a_pooling_that_is_wrong_is_told_by_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        workload_of({"kind": "chain", "ops": [pooling("a", **changed)]})
    assert error.value.field == field


def test_a_pooling_sees_the_images_that_a_convolution_makes() -> None:
    ops = [conv("a"), pooling("b", "a", channels=24), conv("c", "b", height=4, width=3, channels=24)]
    made = workload_of({"kind": "chain", "ops": ops})
    assert workload_of(pair_of(made)) == made
    assert Workload.from_json(made.to_json()) == made
    with pytest.raises(
        InvalidInput, match="a writes a as images x rows x columns x channels = 2 x 7 x 6 x 24"
    ) as error:
        workload_of({"kind": "chain", "ops": [ops[0], pooling("b", "a", height=6, width=7, channels=24)]})
    assert error.value.field == "b.height"
    with pytest.raises(InvalidInput, match="is fp8_e4m3, which a, an op of images, does not support"):
        workload_of({"kind": "chain", "ops": [pooling("a", channels=32)], "dtype": "fp8_e4m3"})


def test_an_op_that_is_unpickled_alone_has_what_it_does_not_ask_for() -> None:
    """A process that chooses candidates imports only the kinds of its ops."""
    says = "import pickle, sys; op = pickle.load(sys.stdin.buffer); print(op.weights, op.out_dtype, op.norm == '')"
    given = pickle.dumps(workload(conv("a")).tile_ops[0])
    done = subprocess.run([sys.executable, "-c", says], input=given, capture_output=True, check=True)
    assert done.stdout == b"None None True\n"


def test_what_an_op_does_not_ask_for_is_what_a_product_has_then() -> None:
    options = (one for one in fields(GemmOp) if one.default is not MISSING and one.name != "source")
    assert {one.name: one.default for one in options} == PLAIN


def test_a_stride_reads_more_pixels_than_it_writes() -> None:
    (op,) = workload(conv("a", kernel=7, padding=3, stride=2, channels=3, height=224, width=224)).tile_ops
    assert (op.m, op.k, op.source_shape) == (2 * 112 * 112, 147, (2 * 224 * 224, 3))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"kernel": 2}, "a.kernel"),
        ({"kernel": 9, "padding": 4}, "a.kernel"),
        ({"stride": 3}, "a.stride"),
        ({"padding": 2}, "a.padding"),
        ({"padding": -1}, "a.padding"),
        ({"groups": 16}, "a.groups"),
        ({"dilation": 2}, "a.dilation"),
        ({"height": 2, "padding": 0}, "a.kernel"),
        ({"width": 0}, "a.width"),
        ({"height": 2**14}, "a.height"),
        ({"width": 2**14}, "a.width"),
        ({"channels": 2**15 + 1}, "a.channels"),
        ({"filters": 10**6}, "a.filters"),
        ({"images": 2**16 + 1, "height": 1, "width": 1}, "a.images"),
        ({"images": 2**16, "height": 512, "width": 512}, "a.images"),
        ({"channels": True}, "channels"),
        ({"taps": 3}, "taps"),
    ],
)
def test_what_is_wrong_is_told_by_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        workload_of({"kind": "chain", "m": 84, "ops": [conv("a", **changed)]})
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (PAIR | {"second": {"filters": 32, "kernel": 4, "stride": 1}}, "second.kernel"),
        (PAIR | {"height": 0}, "height"),
        (PAIR | {"dtype": "fp8_e4m3"}, "dtype"),
        ({"kind": "network-convs", "network": "resnet50", "stage": 5, "images": 1}, "stage"),
        ({"kind": "network-convs", "network": "lenet", "stage": 1, "images": 1}, "network"),
        (CHAIN | {"m": 61}, "b.k"),
        ({"kind": "chain", "m": 85, "ops": [conv("a")]}, "m"),
        ({"kind": "chain", "m": 84, "ops": [conv("a"), conv("b", "a")]}, "b.channels"),
    ],
)
def test_what_does_not_go_together_is_told_by_its_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        workload_of(asked)
    assert refused.value.field == field


SAME = {"images": 1, "height": 4, "width": 8, "channels": 24}


@pytest.mark.parametrize(
    ("changed", "field", "remedy"),
    [
        ({"images": 2, "height": 2}, "b.images", "use 1"),
        ({"height": 8, "width": 4}, "b.height", "use 4"),
        ({"width": 4, "images": 2}, "b.images", "use 1"),
        ({"channels": 12, "width": 16}, "b.width", "use 8"),
        ({"channels": 12}, "b.channels", "use 24"),
        ({"residual": "a", "stride": 2}, "b.residual_source", "= 1 x 2 x 4 x 24"),
        ({"residual": "x"}, "b.residual_source", "= 1 x 4 x 8 x 24"),
        ({"source": "x", "channels": 16, "height": 8, "width": 4}, "b.height", "use 4"),
    ],
)
def test_convolutions_that_share_images_agree_in_each_size(changed: dict[str, Any], field: str, remedy: str) -> None:
    """As many elements are not the same images."""
    first = conv("a", **SAME | {"channels": 16})
    assert workload_of({"kind": "chain", "ops": [first, conv("b", "a", **SAME)]})
    with pytest.raises(InvalidInput) as refused:
        workload_of({"kind": "chain", "ops": [first, conv("b", "a", **SAME) | changed]})
    assert (refused.value.field, remedy in refused.value.remedy) == (field, True)


def test_rows_of_a_product_are_the_pixels_in_front_of_it() -> None:
    made = workload(conv("a", stride=2), product("b", "a", 24, 16, 24))
    assert [op.m for op in made.tile_ops] == [24, 24]


PIXELS = 28 * 28


@pytest.mark.parametrize(
    ("ops", "batch_size"),
    [
        ([conv("a"), conv("b", "a", channels=24)], 1),
        ([conv("a"), product("b", "a", PIXELS, 16, 24), product("c", "b", PIXELS, 8, 16)], 1),
        ([conv("a"), product("b", "x", PIXELS, 24, 16)], 1),
        ([product("a", "x", PIXELS, 16, 8), conv("b", "a")], 1),
        ([product("a", "x", PIXELS, 16, 8), product("b", "a", PIXELS, 8, 16)], PIXELS),
        ([conv("a"), product("b", "tokens", 16, 8, 8)], 16),
        ([conv("a"), product("b", "tokens", 512, 8, 8)], 512),
    ],
)
def test_images_are_computed_together_where_their_pixels_are_rows(ops: list[dict[str, Any]], batch_size: int) -> None:
    """A service of one image is not under the load of one with 256 tokens, although a launch has as many rows."""
    sizes = {"images": 1, "height": 28, "width": 28}
    made = workload(*(one | sizes if one.get("op") else one for one in ops))
    assert made.batch_size == batch_size
    assert default_regime(made) is (Regime.SUSTAINED if batch_size >= 256 else Regime.BURST)


def test_many_images_are_power_limited_and_both_in_one_op_count_them_too() -> None:
    for images, regime in ((255, Regime.BURST), (256, Regime.SUSTAINED)):
        made = workload(conv("a", images=images, channels=16), conv("b", "a", images=images, channels=24))
        assert made.batch_size == images
        assert default_regime(made) is regime
    pair = ConvPairOp.of(*workload(conv("a", filters=64), conv("b", "a", channels=64, filters=64)).tile_ops)
    assert pair.batch_size == 2


def test_a_description_counts_images_and_says_an_activation_once() -> None:
    made = workload_of({"kind": "network-convs", "network": "resnet38", "stage": 3, "images": 16})
    filters = "3x3 256 of 14x14"
    assert made.describe() == f"chain fp16 images=16 256 -> 256 -> 256 {filters} {filters} relu bias residual"


def test_rows_are_asked_for_only_if_an_op_needs_them() -> None:
    ops = [conv("a"), conv("b", "a", channels=24)]
    assert workload_of({"kind": "chain", "ops": ops}) == workload_of({"kind": "chain", "m": 84, "ops": ops})
    with pytest.raises(InvalidInput, match="m: is missing; add it: c has that many rows"):
        workload_of({"kind": "chain", "ops": [*ops, {"name": "c", "source": "b", "n": 8, "k": 24}]})


def test_more_pixels_than_a_product_may_have_rows_are_accepted_as_in_the_preset() -> None:
    preset = {"kind": "network-convs", "network": "vgg19", "stage": 1, "images": 32}
    whole = TuneRequest.model_validate({"pair": preset}).to_spec("simulated:h200").workload
    assert TuneRequest.model_validate({"pair": pair_of(whole)}).to_spec("simulated:h200").workload == whole
    product = {"name": "p", "source": "conv2", "n": 64, "k": 64}
    chain = pair_of(whole) | {"ops": [*pair_of(whole)["ops"], product]}
    with pytest.raises(InvalidInput, match=r"pair.m: is 1605632; products with sizes above"):
        TuneRequest.model_validate({"pair": chain}).to_spec("simulated:h200")
