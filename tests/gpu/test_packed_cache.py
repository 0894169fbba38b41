"""A layer over a cache as servers lay it out, on a GPU: packed keys and values, gaps after pages, and a wider page
table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.test_runtime_layer import OnCardLayer
from tests.support.conformance.launching import OnCard
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind

cupy = pytest.importorskip("cupy")

CASES: dict[str, dict[str, Any]] = {
    "pages of 16, tokens first": {"pages": {"page_tokens": 16, "heads_first": False}, "dtype": Dtype.BF16},
    "pages of 32": {"pages": {"page_tokens": 32}},
}


@pytest.mark.parametrize("gap", [0, 64])
@pytest.mark.parametrize("name", CASES)
def test_a_packed_cache_gives_the_bits_of_a_dense_one(on_card: OnCard, tmp_path: Path, name: str, gap: int) -> None:
    one = OnCardLayer(on_card, tmp_path / "layer.tunerpack", CASES[name], PlanKind.N_LAUNCHES_PDL, ())
    keys, table = one.given["attention.keys"], one.given["attention.pages"]
    pages, *middle, head_dim = keys.shape
    lines = middle[0] * middle[1]
    memory = cupy.full((pages, lines + gap, 2 * head_dim), 0x7FFF, keys.dtype)
    both = [memory[:, :lines, at : at + head_dim].reshape(keys.shape) for at in (0, head_dim)]
    assert all(half.base is not None for half in both)
    for half, given in zip(both, ("attention.keys", "attention.values"), strict=True):
        half[...] = one.given[given]
    wide = cupy.full((len(table), table.shape[1] + 7), -1, cupy.int32)
    wide[:, : table.shape[1]] = table
    packed = one.given | {"attention.keys": both[0], "attention.values": both[1], "attention.pages": wide}
    one.poison()
    one.layer(one.given, stream=one.stream.ptr)
    wanted = one.left()
    one.given[one.layer.output].fill(0x7FFF)
    one.layer(packed, stream=one.stream.ptr)
    found = [one.given[one.layer.output].copy(), *both]
    cupy.cuda.Device().synchronize()
    assert one.layer.refused() == ""
    assert not one.layer.aborted()
    for ours, dense in zip(found, wanted, strict=True):
        assert bool((ours == dense).all())
    assert bool((memory[:, lines:] == 0x7FFF).all()), "written between two pages"
