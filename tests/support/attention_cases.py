"""Shapes of decode attention that run on the CPU and on a card: what rows of a benchmark do not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tuner.core.problem.workload import Dtype


@dataclass(frozen=True, kw_only=True)
class Case:
    op: dict[str, Any]
    lengths: tuple[int, ...]
    #: Columns, tokens of a tile, stages, warps.
    tiling: tuple[int, int, int, int]
    chunk: int
    ctas: int
    speculative: bool = True
    #: Of an element, in units of the results' root mean square.
    most: float = field(default=0.03)


CASES = {
    "ragged": Case(
        op={"sequences": 4, "kv_heads": 1, "query_heads": 8, "head_dim": 128, "max_length": 256},
        lengths=(1, 64, 65, 63),
        tiling=(8, 32, 4, 8),
        chunk=64,
        ctas=3,
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
        chunk=96,
        ctas=4,
        speculative=False,
        most=0.005,
    ),
    "blocks": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 16, "head_dim": 64, "max_length": 130, "new_tokens": 2},
        lengths=(130, 17),
        tiling=(16, 16, 4, 4),
        chunk=32,
        ctas=7,
    ),
    "empty": Case(
        op={"sequences": 3, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 129),
        tiling=(8, 64, 2, 8),
        chunk=128,
        ctas=5,
    ),
    "one chunk": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 1, "head_dim": 128, "max_length": 128},
        lengths=(128, 127),
        tiling=(8, 128, 2, 8),
        chunk=128,
        ctas=7,
    ),
}
