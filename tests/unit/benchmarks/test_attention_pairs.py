"""What the benchmark of the pair attention -> projection tries at each row."""

from __future__ import annotations

import pytest

from benchmarks.attention.pair_rows import PairVariant, floor_us, pair_variants, projection_of
from benchmarks.attention.rows import Row, policy_variants, rows, variants
from tuner.core.legal.legality import check_schedule, dynamic_smem_bytes
from tuner.core.problem.gpu import CATALOGUE, SMEM_RESERVED_PER_CTA_BYTES
from tuner.ops.attention.plans import check_attention
from tuner.ops.attention.plans.tasks import assign

GPU = CATALOGUE["h200"]
ROWS = {row.name: row for row in rows()}


def smem_bytes(row: Row, variant: PairVariant) -> int:
    """Of a CTA of each launch, together."""
    projection = dynamic_smem_bytes(projection_of(row), variant.projection.tiling)
    return variant.attention.tiling.smem_bytes + projection + 2 * SMEM_RESERVED_PER_CTA_BYTES


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_legal_variants_of_which_some_share_an_sm(name: str) -> None:
    row = ROWS[name]
    variants = pair_variants(row, GPU)
    assert len({str(variant) for variant in variants}) == len(variants)
    for variant in variants:
        check_schedule(projection_of(row), GPU, variant.projection)
        tiling = variant.attention.tiling
        plan = assign(
            row.op,
            span_tokens=variant.attention.span_tokens,
            columns=tiling.columns,
            num_queues=GPU.num_sms // tiling.cluster,
            contiguous=variant.attention.contiguous,
            cluster=tiling.cluster,
        )
        check_attention(plan, tile_tokens=tiling.tile_tokens)
    share_an_sm = {smem_bytes(row, variant) <= GPU.smem_per_sm_bytes for variant in variants}
    assert share_an_sm == {False, True}
    assert {variant.programmatic for variant in variants} == {False, True}


def test_the_projection_reads_what_attention_writes() -> None:
    for row in ROWS.values():
        (op,) = projection_of(row).tile_ops
        assert (op.m, op.k) == (row.op.sequences, row.op.kv_heads * row.op.query_heads * row.op.head_dim)


def test_the_floor_is_that_of_the_design() -> None:
    assert floor_us(ROWS["llama3-8b/1/512"]) == pytest.approx(8.1, abs=0.05)
    assert floor_us(ROWS["llama3-70b-tp8/64/8192"]) == pytest.approx(64.8, abs=0.05)


@pytest.mark.parametrize("name", ROWS)
def test_published_ways_to_share_the_work_are_tried_at_each_row(name: str) -> None:
    row = ROWS[name]
    found = policy_variants(row, GPU)
    assert set(found) == {"flash_decoding", "even_shares"}
    for variant in found.values():
        assert variant.tiling.cluster == 1
        assert variant.speculative == (not row.page_tokens)


def test_where_lengths_differ_a_launch_assigns_its_tasks_in_some_variants() -> None:
    for row in ROWS.values():
        is_ragged = set(row.lengths) != {row.op.max_length}
        for tried in (variants(row, GPU), [one.attention for one in pair_variants(row, GPU)]):
            assert {one.by_length for one in tried} == ({False, True} if is_ragged else {False})
            assert not any(one.by_length and one.speculative for one in tried)
