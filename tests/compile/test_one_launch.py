"""An attention and its projection in one launch: what tasks wait for, that kernels build, and numbers on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.attention.one_launch_kernel import Made, OneVariant, build, make, one_variants
from benchmarks.attention.pair_rows import WIDTHS
from benchmarks.attention.rows import Row, Variant, rows, tiling_of
from tests.support.cases import H200, wgmma
from tests.support.emulated.chain import FEW_SMS
from tests.support.emulated.one_launch import EmulatedOneLaunch, one_launch_library
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.ops.attention.shape import DecodeAttention

ROWS = {row.name: row for row in rows()}
SMALL = Row(
    model="small",
    op=DecodeAttention(sequences=10, kv_heads=2, query_heads=4, head_dim=64, max_length=128),
    lengths=(128, 1, 0, 64, 65, 127, 16, 33, 100, 3),
)
_PROJECTION = wgmma((8, 64, 64), swap_ab=True, num_stages=6, input_stages=2)
#: Of an element, in units of the results' root mean square.
MOST = 0.03


@pytest.fixture(autouse=True)
def small_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiles of each of two blocks of rows, on four CTAs."""
    monkeypatch.setitem(WIDTHS, "small", 160)


def small_variant(ctas_per_sm: int, *, cluster: int, spans: int, by_head: bool) -> OneVariant:
    tiling = tiling_of(16, warps=4, stages=4, head_dim=64, queries=4, finish_warps=3, cluster=cluster)
    return OneVariant(
        attention=Variant(tiling=tiling, span_tokens=SMALL.op.max_length // spans),
        projection=replace(_PROJECTION, tiles=_PROJECTION.tiles[:1]),
        most_clusters=4 // cluster,
        most_projecting=FEW_SMS.num_sms,
        ctas_per_sm=ctas_per_sm,
        by_head=by_head,
    )


def worst(variant: OneVariant, *changes: tuple[str, str], made: Made | None = None, seed: int = 0) -> float:
    """Error of the worst element over two launches on the same counters; bits must not differ."""
    made = made or make(SMALL, variant, FEW_SMS)
    library, one = one_launch_library(made, changes), EmulatedOneLaunch(SMALL, seed=seed)
    found = [one.run(library, made, variant) for _ in range(2)]
    if (found[0] != found[1]).any():
        return np.inf
    expected = one.expected()
    return float((np.abs(found[0] - expected) / np.sqrt((expected**2).mean())).max())


def with_waits(made: Made, column: int, value: Callable[[np.ndarray[Any, Any]], Any]) -> Made:
    """With other words in one column of the waits."""
    plan = made.product.plan
    waits = plan.waits.copy()
    waits[:, column] = value(waits)
    changed = replace(plan, waits=waits)
    return replace(made, product=SimpleNamespace(plan=changed, words=changed.words, graph=made.product.graph))


needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_a_compiler
@pytest.mark.parametrize(
    ("ctas_per_sm", "cluster", "spans", "by_head"),
    [(2, 1, 1, True), (2, 2, 2, False), (0, 2, 1, True), (0, 1, 2, False)],
)
def test_one_launch_leaves_the_right_numbers(ctas_per_sm: int, cluster: int, spans: int, by_head: bool) -> None:
    assert worst(small_variant(ctas_per_sm, cluster=cluster, spans=spans, by_head=by_head)) < MOST


@needs_a_compiler
@pytest.mark.parametrize(
    ("column", "value"),
    [
        (2, lambda waits: waits[:, 2] - 1),
        (3, lambda waits: 0 * waits[:, 3]),
        (4, lambda waits: 2 * waits[:, 4]),
    ],
    ids=["a post too few", "no epochs", "behind the first step that reads it"],
)
def test_a_wait_that_ends_early_shows(column: int, value: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    variant = small_variant(2, cluster=1, spans=1, by_head=True)
    variant = replace(variant, most_clusters=1)  # head by head
    made = with_waits(make(SMALL, variant, FEW_SMS), column, value)
    assert any(not worst(variant, made=made, seed=seed) < MOST for seed in range(3))


@needs_a_compiler
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("add_release_gpu(posts.signals + ", "static_cast<void>(posts.signals + "),
        ("* args.num_kv_heads + task.head(), 1)", "* args.num_kv_heads, 1)"),
        ("task.sequence() / posts.sequences", "0 * posts.sequences"),
    ],
    ids=["no post", "another head's signal", "another row block's signal"],
)
def test_who_waits_for_a_post_that_does_not_come_waits_for_ever(before: str, after: str) -> None:
    variant = small_variant(0, cluster=1, spans=1, by_head=True)
    with pytest.raises(AssertionError, match="wait for ever"):
        worst(variant, (before, after))


@needs_a_compiler
def test_a_post_of_each_span_shows() -> None:
    variant = small_variant(0, cluster=1, spans=2, by_head=True)
    each = ("if (!is_empty && live.count() == 1) post_result", "if (!is_empty) post_result")
    assert any(not worst(variant, each, seed=seed) < MOST for seed in range(3))


@needs_a_compiler
def test_threads_that_do_not_meet_their_cluster_keep_it_waiting() -> None:
    variant = small_variant(0, cluster=2, spans=1, by_head=True)
    with pytest.raises(AssertionError, match="wait for ever"):
        worst(variant, ("    attending::cluster_arrive();\n", ""))


def test_each_step_waits_for_the_heads_that_it_reads() -> None:
    variant = small_variant(0, cluster=2, spans=1, by_head=True)
    plan = make(SMALL, variant, FEW_SMS).product.plan
    steps = [0, SMALL.op.query_heads * SMALL.op.head_dim // 64]
    posts = [8 * 2, 2 * 2]  # of eight sequences and of two, by each CTA of a cluster
    assert plan.waits.tolist() == [
        [2 * block + head, 2 * block + head + 1, posts[block], posts[block], steps[head]]
        for block in range(2)
        for head in range(2)
    ]
    assert plan.tasks[:, 3].tolist() == (2 * plan.tasks[:, 1]).tolist()
    whole = make(SMALL, replace(variant, by_head=False), FEW_SMS).product.plan
    assert whole.waits.tolist() == [[0, 2, 16, 16, 0], [2, 4, 4, 4, 0]]


@pytest.mark.parametrize("ctas_per_sm", [0, 1, 2])
def test_a_kernel_of_both_roles_builds_without_spills(ctas_per_sm: int) -> None:
    row = ROWS["llama3-8b/16/512" if ctas_per_sm else "llama3-70b-tp8/16/1-4096"]
    wanted = (ctas_per_sm, 2 if ctas_per_sm else 1, ctas_per_sm > 0)
    variant = next(
        one for one in one_variants(row, H200) if (one.ctas_per_sm, one.attention.tiling.cluster, one.by_head) == wanted
    )
    made = make(row, variant, H200)
    assert build(made.source)
    roles = made.product.plan.num_ctas, made.attention.num_ctas
    assert made.num_ctas == (sum(roles) if ctas_per_sm else max(roles))
    per_sm = max(ctas_per_sm, 1)
    assert per_sm * (made.smem_bytes + SMEM_RESERVED_PER_CTA_BYTES) <= H200.smem_per_sm_bytes
    assert made.num_ctas <= per_sm * H200.num_sms
