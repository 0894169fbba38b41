"""Networks described by their layers: what is tuned for them, and the message if a layer is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.support.repository import ROOT
from tuner.client.models.described import described, is_described
from tuner.core.problem.asked import workload_of
from tuner.errors import InvalidInput

RESNET: dict[str, Any] = json.loads((ROOT / "examples" / "resnet50.json").read_text())
_CONV = {"out_channels": 64, "kernel_size": 1}


def test_the_example_is_the_blocks_of_the_preset() -> None:
    found = described(RESNET, 4, None)
    blocks = [f"stage{stage}.{run}" for stage in (1, 2, 3, 4) for run in ("first", "block")]
    assert [name for name, _ in found] == ["stem", *blocks, "head"]
    for name, chain in found[1:-1]:
        stage, run = name.removeprefix("stage").split(".")
        preset = {"kind": "network-convs", "network": "resnet50", "stage": int(stage), "run": run, "images": 4}
        assert workload_of(chain) == workload_of(preset)
    assert workload_of(described(RESNET, 1, "bf16")[0][1]).dtype == "bf16"


def test_poolings_have_the_sizes_of_the_paper() -> None:
    found = {name: workload_of(chain).ops for name, chain in described(RESNET, 2, None)}
    assert [op.describe() for op in found["stem"]] == ["7x7 64 by 2 of 224x224", "max 3x3 by 2 of 112x112"]
    assert [op.describe() for op in found["head"]] == ["average 7x7 by 7 of 7x7", "1x1 1000 of 1x1"]
    assert [op.m for ops in (found["stem"], found["head"]) for op in ops] == [2 * 112**2, 2 * 56**2, 2, 2]


def test_the_config_of_a_model_is_no_description() -> None:
    assert is_described(RESNET)
    assert not is_described({"model_type": "llama", "hidden_size": 4096})


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (("kind",), "pool", "kind"),
        (("dtype",), "fp32", "dtype"),
        (("classes",), 1000, "classes"),
        (("blocks",), [], "blocks"),
        (("blocks", 0), 3, "blocks[0]"),
        (("blocks", 1, "height"), "56", "blocks[1].height"),
        (("blocks", 1, "depth"), 3, "blocks[1].depth"),
        (("blocks", 1, "layers"), {}, "blocks[1].layers"),
        (("blocks", 1, "layers", 0, "kernel_size"), 2, "blocks[1].layers[0].kernel_size"),
        (("blocks", 1, "layers", 0, "groups"), 32, "blocks[1].layers[0].groups"),
        (("blocks", 1, "layers", 0, "out_channels"), True, "blocks[1].layers[0].out_channels"),
        (("blocks", 1, "layers", 1, "activation"), "mish", "blocks[1].layers[1].activation"),
        (("blocks", 1, "layers", 1, "source"), "conv3", "blocks[1].layers[1].source"),
        (("blocks", 1, "layers", 1, "name"), "conv1", "blocks[1].layers[1].name"),
        (("blocks", 1, "layers", 1, "name"), "conv 2", "blocks[1].layers[1].name"),
        (("blocks", 1, "layers", 0, "name"), "", "blocks[1].layers[0].name"),
        (("blocks", 1, "layers", 2, "add"), "conv/1", "blocks[1].layers[2].add"),
        (("blocks", 1, "layers", 2, "add"), "conv1", "blocks[1].layers[2].add"),
        (("blocks", 0, "layers", 1, "pool"), "minimum", "blocks[0].layers[1].pool"),
        (("blocks", 0, "layers", 1, "kernel_size"), 0, "blocks[0].layers[1].kernel_size"),
        (("blocks", 0, "layers", 1, "stride"), 40, "blocks[0].layers[1].stride"),
        (("blocks", 0, "layers", 1, "padding"), 2, "blocks[0].layers[1].padding"),
        (("blocks", 0, "layers", 1, "out_channels"), 64, "blocks[0].layers[1].out_channels"),
        (("blocks", 9, "layers", 0, "padding"), 1, "blocks[9].layers[0].padding"),
        (("blocks", 1, "in_channels"), 0, "blocks[1].in_channels"),
        (("blocks", 1, "height"), 10**6, "blocks[1].height"),
        (("blocks", 1, "layers"), [{**_CONV, "name": f"conv{one}"} for one in range(9)], "blocks[1].layers"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(place: tuple[str | int, ...], value: object, field: str) -> None:
    network = copy.deepcopy(RESNET)
    inside: Any = network
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    with pytest.raises(InvalidInput) as error:
        described(network, 1, None)
    assert error.value.field == field


@pytest.mark.parametrize("images", [0, 2**17, 2**16])
def test_a_wrong_number_of_images_is_no_field_of_the_file(images: int) -> None:
    with pytest.raises(InvalidInput) as error:
        described(RESNET, images, None)
    assert error.value.field == "images"


def test_a_missing_field_is_told() -> None:
    network = copy.deepcopy(RESNET)
    del network["blocks"][0]["layers"][0]["out_channels"]
    with pytest.raises(InvalidInput, match="is missing") as error:
        described(network, 1, None)
    assert error.value.field == "blocks[0].layers[0].out_channels"
