"""Chains whose last op rotates queries and keys and writes to a cache: every epilogue, one and three new tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.attentions import alone, attention
from tests.support.chains import block
from tests.support.conformance.case import Case, Claim, cross, named
from tests.support.conformance.chains import APART, DOTS, LIBRARY, SHAPES
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.plan_kinds import PlanKind

#: The pairs of a row do not fill the last tile; contexts have no special divisors.
TURNED = block(50, rotary=Rotary(heads=6, kv_heads=2, head_dim=64, max_length=333))
#: A tile has rows of several sequences, and a sequence's rows are in two tiles.
THREE_TOKENS = block(
    51,
    heads=136,
    hidden=200,
    rotary=Rotary(heads=4, kv_heads=1, head_dim=128, max_length=70, new_tokens=3),
    dtype=Dtype.BF16,
    bias=False,
)
#: The same with pages, where the last page of a context is not full.
TO_PAGES = block(50, rotary=Rotary(heads=6, kv_heads=2, head_dim=64, max_length=333, page_tokens=16))
TOKENS_FIRST = block(
    51,
    heads=136,
    hidden=200,
    rotary=Rotary(heads=4, kv_heads=1, head_dim=128, max_length=70, new_tokens=3, page_tokens=32, heads_first=False),
    dtype=Dtype.BF16,
    bias=False,
)
FEW = block(3, rotary=Rotary(heads=4, kv_heads=2, head_dim=64, max_length=2000))


FEW_TO_PAGES = block(3, rotary=Rotary(heads=4, kv_heads=2, head_dim=64, max_length=2000, page_tokens=64))


def layer(**pages: Any) -> Workload:
    """An attention and the block after it, whose last op writes to a cache; both caches have `pages`."""
    heads = Rotary(heads=8, kv_heads=2, head_dim=64, max_length=700, **pages)
    first, *others = block(4, heads=512, rotary=heads, dtype=Dtype.BF16).tile_ops
    alone = attention(form=pages)
    return replace(alone, ops=(*alone.ops, replace(first, source="attention"), *others))


LAYER, LAYER_OF_PAGES = layer(), layer(page_tokens=16)
#: Cases in a layer, preceded by the attention's launch.
IN_LAYERS = {
    name: one.but(launch_ops=alone(num_stages=4, span_tokens=192, speculative=True).launch_ops)
    for name, one in {**named(SHAPES, "wgmma, 16 rows, tickets", "mma"), **DOTS}.items()
}
IN_PAGES = {
    name: one.but(launch_ops=tuple(replace(each, speculative=False) for each in one.launch_ops))
    for name, one in named(IN_LAYERS, "wgmma, 16 rows, tickets", "mma").items()
}
KINDS = (PlanKind.FUSED, *APART[-1:])
#: Each has a different epilogue.
ENGINES = named(SHAPES, "wgmma", "wgmma, parts", "wgmma, shared k", "in turns", "swapped, shared k", "mma, parts")

CASES = [
    *cross("turned", "one token", ENGINES, {"block": TURNED}, kinds=KINDS),
    *cross("turned", "three tokens", ENGINES, {"block": THREE_TOKENS}, kinds=KINDS[:1]),
    *cross("turned", "few rows", DOTS, {"block": FEW}, kinds=KINDS),
    *cross("turned", "to pages", ENGINES, {"block": TO_PAGES}, kinds=KINDS[:1]),
    *cross("turned", "tokens first", ENGINES, {"block": TOKENS_FIRST}, kinds=KINDS[:1]),
    *cross("turned", "few rows to pages", DOTS, {"block": FEW_TO_PAGES}, kinds=KINDS[:1]),
    *cross("turned", "layer of pages", IN_PAGES, {"layer": LAYER_OF_PAGES}, kinds=KINDS[:1]),
    *cross("turned", "layer", IN_LAYERS, {"layer": LAYER}, kinds=(*KINDS, PlanKind.FUSED_PDL)),
    *cross(
        "turned",
        "again",
        named(SHAPES, "wgmma, parts", "swapped, shared k"),
        {"block": TURNED},
        kinds=KINDS,
        claim=Claim.RELAUNCHES,
        num_launches=30,
    ),
]
#: An aborted launch writes only the lines of its new tokens in a cache, and the next launch is correct.
CASES += cross("turned", "aborted", named(SHAPES, "wgmma", "mma, parts"), {"block": TURNED}, claim=Claim.ABORT)
CASES += [
    Case(id=f"turned-library-{name}", workload=workload, candidate=LIBRARY, claim=Claim.NUMBERS)
    for name, workload in (
        *(("one token", TURNED), ("three tokens", THREE_TOKENS), ("few rows", FEW), ("layer", LAYER)),
        *(("to pages", TO_PAGES), ("tokens first", TOKENS_FIRST), ("layer of pages", LAYER_OF_PAGES)),
    )
]
