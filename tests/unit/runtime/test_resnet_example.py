"""The whole-network example: each block's tensors are those of the pack's program."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT
from tuner.core.problem.asked import workload_of

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


def test_blocks_by_programs_leave_the_same_scores(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--formula", "--images", "2", "--size", "64"])
    assert "16 of 16 blocks are launches" in (said := capsys.readouterr().out)
    assert "the top class is the same in 2 of 2" in said


BLOCKS = [(1, "first", 0), (1, "block", 2), (2, "first", 3), (4, "block", 15)]


@pytest.mark.parametrize(("stage", "run", "block"), BLOCKS)
def test_a_block_is_the_run_of_the_network_that_jobs_ask_for(
    example: ModuleType, stage: int, run: str, block: int
) -> None:
    asked = {"kind": "network-convs", "network": "resnet50", "stage": stage, "run": run, "images": 1}
    ops = workload_of(asked).tile_ops
    own = example.ResNet50().blocks[block]
    wanted = {f"{op.name}.w": (op.filters, op.k) for op in ops} | {f"{op.name}.bias": (op.filters,) for op in ops}
    assert {name: tuple(one.shape) for name, one in example.tensors_of(own).items()} == wanted
    first = ops[0]
    shapes = {**wanted, "x": first.source_shape}
    program = SimpleNamespace(shape=shapes.__getitem__)
    pack: Any = SimpleNamespace(layers=(tuple(op.name for op in ops),), chain=lambda *ops, rows, number: program)
    read = (1, first.channels, first.height, first.width)
    assert example.program_of(pack, own, read) is program
    assert example.program_of(pack, own, (1, first.channels, 2 * first.height, first.width)) is None
