"""Attentions, alone and followed by a product: clusters, spans, blocks of columns, rings of every depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.support.attentions import alone, attention
from tests.support.conformance.case import Claim, cross, named
from tests.support.conformance.schedules import dots, portable, wide
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.schedule import AttentionEngine

KINDS = (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL)

WORKLOADS = {
    "grouped": attention(),
    "of 128": attention(head_dim=128, query_heads=8, kv_heads=1, sequences=9),
}
GROUPED = {"grouped": WORKLOADS["grouped"]}
#: More queries than a block has columns, and as many heads of the cache as of queries.
ODD = {
    "new tokens": attention(query_heads=5, new_tokens=5, dtype=Dtype.FP16, scale=0.2),
    "most new tokens and heads": attention(query_heads=16, kv_heads=1, new_tokens=8, sequences=2),
    "one head each": attention(query_heads=1, kv_heads=3, sequences=17, lengths=Lengths.UNIFORM),
}
#: All 16 columns have queries of 128 elements; with more threads, there would be too few registers.
ONE_SEQUENCE = {"one sequence": attention(sequences=1, kv_heads=1, query_heads=16, head_dim=128)}
#: Pages, windows and soft caps; contexts of 700 tokens are 44 pages of 16.
FORMS = {
    "pages of 16": attention(form={"page_tokens": 16}),
    "pages of 32, tokens first": attention(form={"page_tokens": 32, "heads_first": False}, lengths=Lengths.UNIFORM),
    "pages of 64, new tokens": attention(form={"page_tokens": 64}, new_tokens=3, head_dim=128, query_heads=2),
    "window": attention(form={"window": 100}, new_tokens=2),
    "soft cap": attention(form={"soft_cap": 5.0}, scale=1.5),
    "all of them": attention(form={"page_tokens": 16, "window": 333, "soft_cap": 20.0}, query_heads=8, head_dim=128),
}
PAGED_PAIR = attention(d_out=520, form={"page_tokens": 16, "window": 500}, lengths=Lengths.UNIFORM)
FEWER = {"num_stages": 4}  # a ring that also fits with heads of 128
#: All contexts here have 700 tokens.
SCHEDULES = {
    "one span": alone(**FEWER),
    "spans": alone(**FEWER, span_tokens=192, speculative=True, parts_at_once=8),
    "neighbours": alone(tile_tokens=16, num_stages=16, span_tokens=16, contiguous=True),
    "cluster of 2": alone(**FEWER, cluster=2, span_tokens=768, speculative=True),
    "cluster of 8": alone(cluster=8, tile_tokens=16, num_stages=8, span_tokens=768),
    "cluster of 16": alone(cluster=16, tile_tokens=16, num_stages=8, span_tokens=256),
    "cluster of 4, spans": alone(cluster=4, tile_tokens=32, num_stages=8, span_tokens=128, speculative=True),
    "few warps": alone(math_warps=4, finish_warps=2, num_stages=2),
    # With 16 parts at once and heads of 128, eight warps that multiply and end tasks would spill.
    "finished by the math warps": alone(**FEWER, finish_warps=0, span_tokens=320, parts_at_once=8),
    "tiles of 128": alone(tile_tokens=128, num_stages=2, span_tokens=768),
    "by length": alone(tile_tokens=16, num_stages=16, span_tokens=16, by_length=True),
    "by length to clusters": alone(cluster=2, tile_tokens=16, num_stages=8, span_tokens=32, by_length=True),
}

#: Cases in which nothing is known before a length is read.
WAITING = {
    name: schedule.but(launch_ops=(replace(schedule.launch_ops[0], speculative=False),))
    for name, schedule in named(SCHEDULES, "spans", "cluster of 4, spans", "tiles of 128").items()
}
FEW_THREADS = {
    name: schedule.but(launch_ops=(replace(schedule.launch_ops[0], math_warps=4, finish_warps=2),))
    for name, schedule in named(SCHEDULES, "spans", "cluster of 4, spans").items()
}


def one_tile(schedule: Schedule) -> Schedule:
    """The tile of the first op only."""
    tiling = replace(schedule.tiling, tiles=schedule.tiling.tiles[:1])
    return schedule.but(tiling=tiling, ordering=replace(schedule.ordering, rasters=schedule.ordering.rasters[:1]))


#: One for each engine of the product after the attention, which reads its output.
PRODUCTS = {
    "wgmma": wide(((16, 64, 64),)),
    "mma": portable(((16, 64, 64),)),
    "simt": dots((4, 16, 256), (4, 16, 256)),
}
PAIR, RAGGED_PAIR = attention(d_out=520), attention(d_out=520, new_tokens=3, lengths=Lengths.UNIFORM, dtype=Dtype.FP16)
BEHIND = {
    f"{name}, {asked} % asked for{' early' if early else ''}": one_tile(product).but(
        launch_ops=alone(**FEWER, span_tokens=192, speculative=True, next_percent=asked, next_early=early).launch_ops,
    )
    for name, product in PRODUCTS.items()
    for asked, early in ((0, False), (50, False), (100, False), (100, True))
}


def by_mma(schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """Cases without clusters, on the engine that needs no copy engine."""
    return {
        f"{name}, by cp.async": one.but(launch_ops=(replace(one.launch_ops[0], engine=AttentionEngine.MMA),))
        for name, one in schedules.items()
        if one.launch_ops[0].cluster == 1
    }


BEHIND_PAGES = {
    name: one.but(launch_ops=(replace(one.launch_ops[0], speculative=False),)) for name, one in BEHIND.items()
}

CASES = [
    *cross("attention", "alone", SCHEDULES, WORKLOADS, kinds=KINDS, error_below=1.6e-2),
    *cross("attention", "odd", named(SCHEDULES, "spans", "cluster of 4, spans"), ODD, kinds=KINDS),
    *cross("attention", "odd", FEW_THREADS, ONE_SEQUENCE, kinds=KINDS),
    *cross("attention", "form", named(WAITING, "spans", "cluster of 4, spans"), FORMS, kinds=KINDS[1:],
           error_below=1.6e-2),
    *cross("attention", "form", named(WAITING, "tiles of 128"), named(FORMS, "pages of 16"), kinds=KINDS[1:]),
    *cross("attention", "form", named(BEHIND_PAGES, "wgmma, 50 % asked for"), {"pair": PAGED_PAIR}, kinds=KINDS),
    *cross("attention", "pair", BEHIND, {"pair": PAIR}, kinds=KINDS, error_below=1.6e-2),
    *cross("attention", "mma", by_mma(SCHEDULES), WORKLOADS, kinds=KINDS, error_below=1.6e-2),
    *cross("attention", "mma odd", by_mma(named(SCHEDULES, "spans")), ODD, kinds=KINDS),
    *cross("attention", "mma odd", by_mma(named(FEW_THREADS, "spans")), ONE_SEQUENCE, kinds=KINDS[1:]),
    *cross("attention", "mma form", by_mma(named(WAITING, "spans", "tiles of 128")), FORMS, kinds=KINDS[1:],
           error_below=1.6e-2),
    *cross("attention", "mma pair", by_mma(BEHIND), {"pair": PAIR}, kinds=KINDS, error_below=1.6e-2),
    *cross("attention", "mma pair", by_mma(named(BEHIND_PAGES, "mma, 50 % asked for")), {"pages": PAGED_PAIR},
           kinds=KINDS),
    *cross("attention", "mma again", by_mma(SCHEDULES), GROUPED, kinds=KINDS, claim=Claim.RELAUNCHES),
    *cross("attention", "mma again", by_mma(named(BEHIND, "mma, 100 % asked for", "mma, 100 % asked for early")),
           {"pair": PAIR}, kinds=KINDS, claim=Claim.RELAUNCHES),
    *cross("attention", "mma zip", by_mma(named(SCHEDULES, "spans")), GROUPED, kinds=KINDS, claim=Claim.ARTIFACT),
    *cross("attention", "mma zip", by_mma(named(BEHIND, "mma, 50 % asked for")), {"pair": PAIR}, kinds=KINDS,
           claim=Claim.ARTIFACT),
    *cross("attention", "mma zip form", by_mma(named(WAITING, "spans")), FORMS, kinds=KINDS[1:],
           claim=Claim.ARTIFACT),
    *cross("attention", "pair", named(BEHIND, "wgmma, 50 % asked for"), {"ragged": RAGGED_PAIR}, kinds=KINDS),
    *cross("attention", "again", SCHEDULES, GROUPED, kinds=KINDS, claim=Claim.RELAUNCHES),
    *cross("attention", "again", named(BEHIND, "wgmma, 100 % asked for", "wgmma, 100 % asked for early"),
           {"pair": PAIR}, kinds=KINDS, claim=Claim.RELAUNCHES),
    *cross("attention", "zip", named(SCHEDULES, "spans", "cluster of 16"), GROUPED, kinds=KINDS, claim=Claim.ARTIFACT),
    *cross("attention", "zip", named(BEHIND, "wgmma, 50 % asked for", "wgmma, 100 % asked for early"),
           {"pair": PAIR}, kinds=KINDS, claim=Claim.ARTIFACT),
    *cross("attention", "zip form", named(WAITING, "spans"), FORMS, kinds=KINDS[1:], claim=Claim.ARTIFACT),
]  # fmt: skip
