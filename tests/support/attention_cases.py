"""Decode attention cases that run on the CPU and on a GPU, with shapes that the benchmarks do not cover."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.workload import Dtype
from tuner.ops.attention.plans.tasks import AttentionPlan, assign
from tuner.ops.attention.schedule import AttentionEngine, AttentionTiling
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention


@dataclass(frozen=True, kw_only=True)
class Case:
    op: dict[str, Any]
    lengths: tuple[int, ...]
    #: Columns, tokens per tile, stages, warps.
    tiling: tuple[int, int, int, int]
    #: Tokens per span, and clusters.
    span: int
    queues: int
    cluster: int = 1
    finish_warps: int = 4
    speculative: bool = True
    form: dict[str, Any] = field(default_factory=dict)
    #: Tokens per page, and whether heads come before tokens; None: the cache is contiguous.
    pages: tuple[int, bool] | None = None
    #: Whether a launch assigns the tasks that its lengths leave.
    by_length: bool = False
    #: Tolerance per element, in units of the results' root mean square.
    most: float = field(default=0.03)

    @property
    def engines(self) -> tuple[AttentionEngine, ...]:
        """The engines that run the case."""
        return tuple(AttentionEngine) if self.cluster == 1 else (AttentionEngine.TMA,)


CASES = {
    "ragged": Case(
        op={"sequences": 4, "kv_heads": 1, "query_heads": 8, "head_dim": 128, "max_length": 256},
        lengths=(1, 64, 65, 63),
        tiling=(8, 32, 4, 8),
        span=64,
        queues=3,
    ),
    "new tokens": Case(
        op={
            "sequences": 2,
            "kv_heads": 2,
            "query_heads": 3,
            "head_dim": 64,
            "max_length": 200,
            "new_tokens": 5,
            "dtype": Dtype.FP16,
        },
        lengths=(200, 3),
        tiling=(16, 32, 2, 4),
        span=96,
        queues=4,
        speculative=False,
        most=0.005,
    ),
    "tiles left over": Case(
        op={"sequences": 6, "kv_heads": 1, "query_heads": 4, "head_dim": 64, "max_length": 160},
        lengths=(96, 33, 160, 65, 20, 70),
        tiling=(8, 32, 2, 4),
        span=160,
        queues=2,
        speculative=False,
    ),
    "blocks": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 16, "head_dim": 64, "max_length": 130, "new_tokens": 2},
        lengths=(130, 17),
        tiling=(16, 16, 4, 4),
        span=32,
        queues=7,
    ),
    "empty": Case(
        op={"sequences": 3, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 129),
        tiling=(8, 64, 2, 8),
        span=128,
        queues=5,
    ),
    "nearly all empty": Case(
        op={"sequences": 13, "kv_heads": 1, "query_heads": 4, "head_dim": 64, "max_length": 96},
        lengths=(0, 33, 0, 0, 0, 0, 0, 0, 0, 0, 96, 0, 0),
        tiling=(8, 32, 2, 4),
        span=96,
        queues=1,
        speculative=False,
    ),
    "one chunk": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 1, "head_dim": 128, "max_length": 128},
        lengths=(128, 127),
        tiling=(8, 128, 2, 8),
        span=128,
        queues=7,
    ),
    "clusters": Case(
        op={"sequences": 3, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 33),
        tiling=(8, 32, 2, 4),
        span=512,
        queues=2,
        cluster=8,
    ),
    "clusters, spans": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 3, "head_dim": 64, "max_length": 700, "new_tokens": 3},
        lengths=(700, 129),
        tiling=(16, 16, 4, 2),
        span=128,
        queues=3,
        cluster=4,
        speculative=False,
    ),
    "sixteen": Case(
        op={"sequences": 1, "kv_heads": 3, "query_heads": 1, "head_dim": 64, "max_length": 256},
        lengths=(200,),
        tiling=(8, 16, 2, 1),
        span=256,
        queues=2,
        cluster=16,
    ),
    "finished by the math warps": Case(
        op={"sequences": 3, "kv_heads": 1, "query_heads": 8, "head_dim": 128, "max_length": 256},
        lengths=(256, 65, 63),
        tiling=(8, 32, 4, 8),
        span=64,
        queues=3,
        finish_warps=0,
    ),
    "clusters finished by the math warps": Case(
        op={"sequences": 3, "kv_heads": 1, "query_heads": 8, "head_dim": 64, "max_length": 256},
        lengths=(256, 65, 63),
        tiling=(8, 32, 2, 2),
        span=128,
        queues=3,
        cluster=2,
        finish_warps=0,
    ),
    "pages of 16": Case(
        op={"sequences": 4, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 129, 17),
        tiling=(8, 64, 2, 8),
        span=128,
        queues=3,
        speculative=False,
        pages=(16, True),
    ),
    "many pages, by length": Case(
        op={"sequences": 3, "kv_heads": 1, "query_heads": 8, "head_dim": 64, "max_length": 1200},
        lengths=(1190, 641, 3),
        tiling=(8, 64, 2, 4),
        span=1280,
        queues=1,
        cluster=2,
        finish_warps=0,
        speculative=False,
        by_length=True,
        pages=(16, False),
    ),
    "pages of 64, tokens before heads": Case(
        op={"sequences": 3, "kv_heads": 3, "query_heads": 2, "head_dim": 64, "max_length": 260, "new_tokens": 2},
        lengths=(260, 65, 191),
        tiling=(8, 32, 4, 4),
        span=512,
        queues=4,
        cluster=4,
        speculative=False,
        pages=(64, False),
    ),
    "pages of 64, tokens before heads, no cluster": Case(
        op={"sequences": 3, "kv_heads": 3, "query_heads": 2, "head_dim": 128, "max_length": 260},
        lengths=(260, 65, 191),
        tiling=(8, 32, 4, 4),
        span=96,
        queues=4,
        speculative=False,
        pages=(64, False),
    ),
    "many pages": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 8, "head_dim": 64, "max_length": 1200},
        lengths=(1190, 641),
        tiling=(8, 64, 4, 8),
        span=1216,
        queues=1,
        speculative=False,
        pages=(16, False),
    ),
    "window": Case(
        op={"sequences": 5, "kv_heads": 1, "query_heads": 3, "head_dim": 64, "max_length": 400, "new_tokens": 3},
        lengths=(400, 77, 2, 0, 257),
        tiling=(16, 32, 2, 4),
        span=64,
        queues=4,
        speculative=False,
        form={"window": 75},
    ),
    "window, clusters, pages of 32": Case(
        op={"sequences": 3, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 700},
        lengths=(700, 33, 515),
        tiling=(8, 64, 2, 4),
        span=256,
        queues=3,
        cluster=2,
        speculative=False,
        form={"window": 275},
        pages=(32, True),
    ),
    "by length": Case(
        op={"sequences": 5, "kv_heads": 2, "query_heads": 16, "head_dim": 64, "max_length": 300, "new_tokens": 2},
        lengths=(300, 0, 33, 1, 290),
        tiling=(16, 32, 2, 4),
        span=64,
        queues=7,
        speculative=False,
        by_length=True,
    ),
    "by length, many sequences": Case(
        op={"sequences": 70, "kv_heads": 1, "query_heads": 4, "head_dim": 64, "max_length": 70},
        lengths=tuple(37 * one % 71 for one in range(70)),
        tiling=(8, 16, 2, 2),
        span=32,
        queues=11,
        speculative=False,
        by_length=True,
    ),
    "by length, more clusters than tasks": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 4, "head_dim": 128, "max_length": 400},
        lengths=(200, 17),
        tiling=(8, 16, 2, 2),
        span=64,
        queues=9,
        cluster=2,
        speculative=False,
        by_length=True,
    ),
    "by length, window, pages": Case(
        op={"sequences": 4, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 129, 17),
        tiling=(8, 32, 2, 4),
        span=64,
        queues=3,
        cluster=2,
        speculative=False,
        form={"window": 100},
        pages=(16, True),
        by_length=True,
    ),
    "soft cap": Case(
        op={"sequences": 2, "kv_heads": 2, "query_heads": 4, "head_dim": 64, "max_length": 200, "scale": 1.5},
        lengths=(200, 63),
        tiling=(8, 32, 2, 4),
        span=96,
        queues=3,
        form={"soft_cap": 5.0},
    ),
}


#: The names of cases with each engine that runs them.
ENGINES_OF_CASES = [(name, engine) for name, case in CASES.items() for engine in case.engines]


def form_of(case: Case, op: DecodeAttention) -> AttentionForm:
    """The case's form of attention beyond its shapes; some pages of the cache belong to no sequence."""
    if case.pages is None:
        return AttentionForm(**case.form)
    page_tokens, heads_first = case.pages
    num_pages = sum(-(-max(length, 0) // page_tokens) for length in case.lengths) + 3
    return AttentionForm(
        paged=PagedCache(num_pages=num_pages, page_tokens=page_tokens, heads_first=heads_first), **case.form
    )


def tiling_of(case: Case, op: DecodeAttention, engine: AttentionEngine = AttentionEngine.TMA) -> AttentionTiling:
    """The compiled tiling of a case."""
    columns, tile, stages, warps = case.tiling
    return AttentionTiling(
        head_dim=op.head_dim,
        columns=columns,
        tile_tokens=tile,
        num_stages=stages,
        math_warps=warps,
        live_columns=min(columns, op.columns),
        finish_warps=case.finish_warps,
        cluster=case.cluster,
        engine=engine,
    )


def plan_of(case: Case, op: DecodeAttention, *, contiguous: bool) -> AttentionPlan:
    """The case's plan."""
    return assign(
        op,
        span_tokens=case.span,
        columns=case.tiling[0],
        num_queues=case.queues,
        contiguous=contiguous,
        cluster=case.cluster,
        form=form_of(case, op),
        by_length=case.by_length,
    )
