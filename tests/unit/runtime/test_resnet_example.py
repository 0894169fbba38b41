"""The whole-network example: each block's tensors are those of the pack's program."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT
from tuner.client.models.described import described
from tuner.core.problem.asked import workload_of
from tuner.ops.conv.op import ConvOp

torch = pytest.importorskip("torch")
EXAMPLE = ROOT / "examples" / "resnet.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resnet_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks up its module
    spec.loader.exec_module(module)
    return module


def test_parts_by_programs_leave_the_same_scores(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--formula", "--images", "2", "--size", "64"])
    assert "18 of 18 parts are launches\n" in (said := capsys.readouterr().out)
    assert "the top class is the same in 2 of 2" in said


#: Names in the description, and places among the parts.
PARTS = {"stem": 0, "stage1.first": 1, "stage1.block": 3, "stage2.first": 4, "stage4.block": 16, "head": 17}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_the_block_of_the_description_that_jobs_tune(example: ModuleType, name: str) -> None:
    description = json.loads((ROOT / "examples" / "resnet50.json").read_text())
    made = workload_of(dict(described(description, 1, None))[name])
    own = example.ResNet50().parts[PARTS[name]]
    part = own.of_wide_images() if name == "stem" else own
    convs = [op for op in made.tile_ops if isinstance(op, ConvOp)]
    wanted = {f"{op.name}.w": (op.filters, op.k) for op in convs} | {f"{op.name}.bias": (op.filters,) for op in convs}
    assert {of: tuple(one.shape) for of, one in example.tensors_of(part).items()} == wanted
    assert example.ops_of(part)[-1] == made.tile_ops[-1].name
    first, asked = made.tile_ops[0], []
    shapes = {**wanted, "x": first.source_shape}

    def chain(*ops: str, rows: int, number: int) -> Any:
        asked.append(rows)
        return SimpleNamespace(shape=shapes.__getitem__)

    pack: Any = SimpleNamespace(layers=(tuple(op.name for op in made.tile_ops),), chain=chain)
    read = (1, first.channels, first.height, first.width)
    assert example.program_of(pack, part, read) is not None
    assert asked == [first.m]
    assert example.program_of(pack, part, (1, first.channels, 2 * first.height, first.width)) is None
