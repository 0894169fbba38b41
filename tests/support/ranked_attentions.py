"""How well the simulator ranks measured schedules of decode attentions.

The schedules are those of benchmarks/results/<gpu>/attention.json; tests/unit/benchmarks/test_simulator.py judges them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common.report import results_file
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.trial.stats import rank_correlation
from tuner.ops.attention.costs.timeline import attention_us
from tuner.ops.attention.op import AttentionOp, Lengths
from tuner.ops.attention.plans import plan_of
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.shapes.form import PLAIN
from tuner.ops.attention.shapes.shape import DecodeAttention

#: KV heads, and query heads that share one.
_HEADS = {"llama3-8b": (8, 4), "llama3-70b-tp8": (1, 8)}
#: (Cluster size, number of such clusters that the card held at once).
_LIVE = {"h200": ((4, 30), (8, 15), (16, 7))}
_NAME = re.compile(
    r"cluster (?P<cluster>\d+), span (?P<span_tokens>\d+), tile (?P<tile_tokens>\d+) x (?P<num_stages>\d+), "
    r"warps (?P<math_warps>\d+)\+(?P<finish_warps>\d+), (?P<parts_at_once>\d+) parts at once(?P<flags>.*)"
)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """The schedules of one row."""

    row: str
    #: Microseconds of each: the simulator's forecast, and the card's time.
    forecast_us: tuple[float, ...]
    measured_us: tuple[float, ...]

    @property
    def spearman(self) -> float:
        """The rank correlation."""
        found = rank_correlation(self.forecast_us, self.measured_us)
        assert found is not None, "all times are equal"
        return found


def schedule_of(name: str) -> AttentionSchedule | None:
    """The schedule's text in a row; None for a plain launch, and for the library."""
    if (found := _NAME.fullmatch(name)) is None or "plain" in (flags := found["flags"]):
        return None
    words: dict[str, Any] = {field: int(value) for field, value in found.groupdict().items() if field != "flags"}
    words |= {flag: flag in flags for flag in ("contiguous", "speculative", "by_length")}
    return AttentionSchedule(**words)


def op_of(row: dict[str, Any]) -> AttentionOp:
    """A row's attention."""
    kv_heads, query_heads = _HEADS[row["model"]]
    shape = DecodeAttention(
        sequences=row["batch"], kv_heads=kv_heads, query_heads=query_heads, head_dim=128, max_length=row["context"]
    )
    pages = PagedCache(num_pages=row["batch"] * row["context"] // 16, page_tokens=16)
    form = replace(PLAIN, paged=pages) if row["row"].endswith("/pages16") else PLAIN
    lengths = Lengths.UNIFORM if "/1-" in row["row"] else Lengths.FULL
    return AttentionOp(name="attention", source="q", shape=shape, lengths=lengths, form=form)


def ranked(gpu: Gpu, rows: list[dict[str, Any]]) -> Iterator[Ranked]:
    """Each row's schedules."""
    for row in rows:
        op, times = op_of(row), []
        for name, us in sorted(row["variants_us"].items()):  # by name, since a row lists them by their times
            if (one := schedule_of(name)) is not None:
                plan = plan_of(op, one, gpu)
                times.append((attention_us(plan, op.timed_lengths, gpu, tiling=one.tiling_of(op.shape)), us))
        forecast_us, measured_us = zip(*times, strict=True)
        yield Ranked(row=row["row"], forecast_us=forecast_us, measured_us=measured_us)


def measured(gpu: str) -> tuple[Gpu, list[dict[str, Any]]]:
    """A GPU in the state of the card, and the measurements on it."""
    rows = json.loads(results_file(gpu, "attention").read_text())["rows"]
    return replace(CATALOGUE[gpu], live_clusters=_LIVE[gpu]), rows
