"""An op that rotates queries and keys and writes to a cache: sizes, JSON, plans."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import H200, ordering, tiling, wgmma
from tests.support.chains import block
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.presets import LayerRun, decoder_layer
from tuner.core.legal.legality import estimated_resources, tiling_problem
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.tiling import Epilogue
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.errors import InvalidInput

HEADS = Rotary(heads=4, kv_heads=2, head_dim=64, max_length=100, new_tokens=2)


def layer(rotary: Rotary | None = HEADS) -> Workload:
    return block(16, heads=128, width=256, hidden=192, qkv=512, rotary=rotary)


def test_a_column_is_a_pair_and_its_rows_of_w_are_two() -> None:
    qkv = layer().tile_ops[3]
    assert (qkv.n, qkv.weight_rows, qkv.rows_per_column) == (256, 512, 2)
    assert (qkv.c_columns, qkv.result_columns) == (256, 512)
    assert HEADS.cache_shape(16) == (8, 2, 100, 64)
    own = {"qkv.keys", "qkv.values", "qkv.lengths", "qkv.frequencies"}
    assert own | {"down.squares"} < {*qkv.operands}
    plain = layer(None).tile_ops[3]
    assert (plain.weight_rows, plain.num_flops) == (qkv.weight_rows, qkv.num_flops)
    assert [HEADS.pair_of(column) for column in (0, 31, 32, 63, 64, 96)] == [0, 31, 0, 31, 32, 32]


def test_it_survives_json_and_has_a_digest_of_its_own() -> None:
    workload = layer()
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.digest != layer(None).digest
    assert "rotary" not in layer(None).to_json()["ops"][3]
    spec = JobSpec(workload=workload, target_id="h200", objective=Objective(), budget=Budget())
    assert JobSpec.from_json(spec.to_json()) == spec
    assert spec.problem_digest != replace(spec, workload=layer(None)).problem_digest
    assert workload.describe().endswith("rotary")


def test_a_cache_may_have_pages() -> None:
    """Seven pages hold the longest context of a sequence."""
    first, last = (replace(HEADS, page_tokens=16, heads_first=heads_first) for heads_first in (True, False))
    assert (first.cache_shape(16), last.cache_shape(16)) == ((8 * 7, 2, 16, 64), (8 * 7, 16, 2, 64))
    workload = layer(last)
    qkv = workload.tile_ops[3]
    assert qkv.operands[-6:-1] == ("qkv.keys", "qkv.values", "qkv.lengths", "qkv.pages", "qkv.frequencies")
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.describe().endswith("rotary to pages of 16, tokens first")
    written = layer().to_json()["ops"][3]["rotary"]
    assert set(written) == {"heads", "kv_heads", "head_dim", "max_length", "new_tokens"}, "digests stay"
    assert len({one.digest for one in (workload, layer(first), layer())}) == 3


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"page_tokens": 24}, "page_tokens: 24 is not supported by any kernel; use one of 16, 32, 64"),
        ({"heads_first": False}, "heads_first: a contiguous cache is"),
    ],
)
def test_pages_that_no_kernel_has_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        replace(HEADS, **changed)


def test_a_cache_of_pages_that_a_kernel_cannot_count_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"qkv\.rotary\.max_length: the cache has 2147483712 rows per head"):
        layer(replace(HEADS, max_length=2**27, page_tokens=32))


def test_a_models_layer_writes_to_the_next_layers_cache() -> None:
    whole = decoder_layer("llama3-8b", sequences=4, max_length=300, new_tokens=2)
    assert whole.tile_ops[3].rotary == Rotary(heads=32, kv_heads=8, head_dim=128, max_length=300, new_tokens=2)
    (qkv,) = decoder_layer("llama3-70b", sequences=1, max_length=300, tp=8, run=LayerRun.QKV).tile_ops
    assert (qkv.rotary, qkv.n) == (Rotary(heads=8, kv_heads=1, head_dim=128, max_length=300), 640)
    assert decoder_layer("llama3-8b", sequences=4, max_length=300, rotary=False).tile_ops[3].rotary is None
    paged = decoder_layer("llama3-8b", sequences=4, max_length=300, page_tokens=16, heads_first=False)
    assert paged.tile_ops[3].rotary == Rotary(
        heads=32, kv_heads=8, head_dim=128, max_length=300, page_tokens=16, heads_first=False
    )
    assert paged.launch_ops[0].form.paged == paged.tile_ops[3].rotary.paged(4)


def test_the_copy_engine_stores_no_such_op() -> None:
    tiles = wgmma((128, 64, 64), (128, 64, 64), (128, 64, 64), (128, 64, 64), num_warps=8, epilogue=Epilogue.TMA)
    problem = tiling_problem(layer(), H200, tiles)
    assert problem is not None
    assert "TMA cannot write to a cache; use direct" in problem
    assert tiling_problem(layer(None), H200, tiles) is None


@pytest.mark.parametrize("seed", range(3))
def test_any_interleaving_of_its_plan_turns_every_pair_once(seed: int) -> None:
    workload, tiles = layer(), tiling(*((16, 32),) * 4, k=64)
    graph = tile_graph(workload, tiles)
    plan = verify(make_plan(graph, ordering(4), H200), graph, estimated_resources(workload, tiles), H200).plan
    tensors = random_tensors(workload, seed)
    outputs = interpret(plan, graph, tensors, random.Random(seed), num_launches=2)
    wanted = plain_product(workload, tensors)
    assert np.iscomplexobj(outputs["qkv"])
    for name, found in outputs.items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-9, atol=1e-9)


def test_what_is_read_behind_the_write_is_refused() -> None:
    first = layer().tile_ops
    with pytest.raises(InvalidInput, match="up reads qkv, whose keys and values go to a cache"):
        replace(layer(), ops=(*first, replace(first[0], name="up", source="qkv", k=256)))
