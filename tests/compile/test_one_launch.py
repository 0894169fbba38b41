"""The experiment of attention and projection in one launch: what its tasks wait for, and that its kernels build."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.attention.one_launch_kernel import OneVariant, build, one_variants
from benchmarks.attention.rows import rows
from tuner.core.problem.gpu import CATALOGUE

GPU = CATALOGUE["h200"]
ROWS = {row.name: row for row in rows()}


def variant_of(name: str, ctas_per_sm: int, cluster: int, *, by_head: bool) -> OneVariant:
    """The first of a row."""
    return next(
        one
        for one in one_variants(ROWS[name], GPU)
        if (one.ctas_per_sm, one.attention.tiling.cluster, one.by_head) == (ctas_per_sm, cluster, by_head)
    )


@pytest.mark.parametrize("ctas_per_sm", [0, 1, 2])
def test_a_kernel_of_both_roles_builds_without_spills(ctas_per_sm: int) -> None:
    name = "llama3-8b/16/512" if ctas_per_sm else "llama3-70b-tp8/16/1-4096"
    made = build(ROWS[name], variant_of(name, ctas_per_sm, 2, by_head=ctas_per_sm > 0), GPU)
    assert made.cubin
    roles = made.product.plan.num_ctas, made.attention.num_ctas
    assert made.num_ctas == (sum(roles) if ctas_per_sm else max(roles))
    assert made.smem_bytes <= GPU.smem_per_cta_bytes


def test_each_step_waits_for_the_heads_that_it_reads() -> None:
    row = ROWS["llama3-8b/16/512"]
    variant = variant_of(row.name, 2, 2, by_head=True)
    made = build(row, variant, GPU)
    plan, tile = made.product.plan, made.product.graph.tiling.cta_tiles[0]
    posts = row.op.sequences * variant.attention.tiling.cluster  # a CTA of a cluster posts what it stores
    assert {tuple(task) for task in plan.tasks[:, 3:5].tolist()} == {(0, row.op.kv_heads)}
    columns = row.op.query_heads * row.op.head_dim
    steps = [head * columns // tile.k for head in range(row.op.kv_heads)]
    assert plan.waits.tolist() == [[h, h + 1, posts, posts, step] for h, step in enumerate(steps)]
    whole = build(row, replace(variant, by_head=False), GPU).product.plan
    assert whole.waits.tolist() == [[0, row.op.kv_heads, posts, posts, 0]]
    assert np.array_equal(whole.tasks[:, :3], plan.tasks[:, :3])


def test_tasks_of_other_rows_wait_for_other_sequences() -> None:
    row = ROWS["llama3-70b-tp8/64/512"]
    made = build(row, variant_of(row.name, 2, 1, by_head=False), GPU)
    plan, tile = made.product.plan, made.product.graph.tiling.cta_tiles[0]
    num_blocks = row.op.sequences // tile.m
    assert plan.num_signals == num_blocks * row.op.kv_heads
    assert plan.waits[:, 2].tolist() == [tile.m] * num_blocks
    assert np.array_equal(plan.tasks[:, 3], plan.tasks[:, 1])
