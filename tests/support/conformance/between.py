"""An attention between products: it reads the output of every engine, and every engine reads its output."""

from __future__ import annotations

from dataclasses import replace

from tests.support.attentions import alone
from tests.support.between import between
from tests.support.conformance.case import Case, Claim, cross, named
from tests.support.conformance.chains import DOTS, LIBRARY, SHAPES
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind

#: Schedules of four products: qkv, o_proj, gate_up and down.
TURNED = between(sequences=50, num_behind=3, sizes={"max_length": 333})
THREE_TOKENS = between(
    sequences=17,
    num_behind=3,
    dtype=Dtype.BF16,
    sizes={"head_dim": 128, "kv_heads": 1, "max_length": 270, "new_tokens": 3},
)
QUERIES_ALONE = between(sequences=33, num_behind=3, rotary=False, query_heads=4)
PAGES = between(sequences=50, num_behind=3, sizes={"max_length": 333}, pages={"page_tokens": 16})
TOKENS_FIRST = between(
    sequences=17,
    num_behind=3,
    dtype=Dtype.BF16,
    sizes={"head_dim": 128, "kv_heads": 1, "max_length": 270, "new_tokens": 3},
    pages={"page_tokens": 64, "heads_first": False},
)
FEW = between(sequences=3, num_behind=3, sizes={"max_length": 2000})
ATTENTION = alone(num_stages=4, span_tokens=192, speculative=True, next_percent=50).launch_ops
#: Each has a different epilogue.
ENGINES = {
    name: one.but(launch_ops=ATTENTION)
    for name, one in named(
        SHAPES, "wgmma", "wgmma, parts", "wgmma, shared k", "in turns", "swapped, shared k", "mma, parts"
    ).items()
}
#: The same with pages that depend on lengths.
OF_PAGES = {
    name: one.but(launch_ops=tuple(replace(each, speculative=False) for each in ATTENTION))
    for name, one in named(ENGINES, "wgmma", "swapped, shared k", "mma, parts").items()
}
FEW_ROWS = {name: one.but(launch_ops=ATTENTION) for name, one in DOTS.items()}
#: A launch before the attention, and one after it.
RUNS = {
    name: one.but(ordering=replace(one.ordering, run_starts=(1,)))
    for name, one in named(ENGINES, "wgmma, parts", "mma, parts").items()
}
KINDS = (PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL)

CASES = [
    *cross("between", "turned", ENGINES, {"block": TURNED}, kinds=KINDS[1:]),
    *cross("between", "turned", named(ENGINES, "wgmma", "mma, parts"), {"three tokens": THREE_TOKENS}, kinds=KINDS),
    *cross("between", "queries", named(ENGINES, "wgmma", "mma, parts"), {"block": QUERIES_ALONE}, kinds=KINDS),
    *cross("between", "pages", OF_PAGES, {"block": PAGES}, kinds=KINDS[1:]),
    *cross("between", "pages", OF_PAGES, {"tokens first": TOKENS_FIRST}, kinds=KINDS[1:]),
    *cross("between", "few rows", FEW_ROWS, {"block": FEW}, kinds=KINDS[1:]),
    *cross("between", "runs", RUNS, {"block": TURNED}, kinds=(PlanKind.RUNS,)),
    *cross("between", "again", RUNS, {"block": TURNED}, kinds=(PlanKind.RUNS,), claim=Claim.RELAUNCHES),
    *cross("between", "again", named(ENGINES, "wgmma"), {"block": TURNED}, kinds=KINDS[1:], claim=Claim.RELAUNCHES),
]
CASES += [
    Case(id=f"between-library-{name}", workload=workload, candidate=LIBRARY, claim=Claim.NUMBERS)
    for name, workload in (
        *(("turned", TURNED), ("three tokens", THREE_TOKENS), ("queries", QUERIES_ALONE)),
        *(("pages", PAGES), ("tokens first", TOKENS_FIRST)),
    )
]
