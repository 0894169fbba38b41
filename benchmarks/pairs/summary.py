"""The summary of a suite's rows, compared with its targets. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.common.rows import ROWS, SUITES
from tuner.core.schedule.plan_kinds import PlanKind


def summarise(suite: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the suite's rows, its weakest row, and the missed targets; `holds` is None while rows are
    missing and none of the existing ones misses its target."""
    bars, own = SUITES[suite], [_with_ours(row) for row in rows if row["suite"] == suite]
    figures: dict[str, Any] = {
        "num_rows": len(own),
        "of": sum(row.suite == suite for row in ROWS),
        "fused": _mean(own, "fused_speedup"),
        "fused_pdl": _mean(own, "fused_speedup_pdl"),
        "ours": _mean(own, "ours_speedup"),
        "verdict": _mean(own, "verdict_speedup"),
        "least_fused": _least(own, "fused_speedup"),
        "least_ours": _least(own, "ours_speedup"),
        "least_verdict": _least(own, "verdict_speedup"),
    }
    missed = [
        f"{name} {figures[name]} of {bar}"
        for name, bar in (("fused", bars.fused), ("fused_pdl", bars.fused_pdl), ("ours", bars.ours))
        if bar is not None and (figures[name] or 0.0) < bar and len(own) == figures["of"]
    ]
    each = {"fused_speedup": bars.each_fused, "verdict_speedup": bars.each_verdict, "ours_speedup": bars.each_ours}
    for key, bar in each.items():
        if bar is not None:
            missed += [f"{_name(row)} {key} {row.get(key)} of {bar}" for row in own if row.get(key, 0.0) < bar]
    if bars.over_reference is not None:
        missed += [
            f"{_name(row)} takes {row['over_reference']} times the reference; the target is {bars.over_reference}"
            for row in own
            if row["pair"] in bars.reference_pairs
            and row["m"] <= 16
            and row.get("over_reference", 0.0) > bars.over_reference
        ]
    is_whole = len(own) == figures["of"]
    return {**figures, "missed": missed, "holds": False if missed else True if is_whole else None}


def _with_ours(row: dict[str, Any]) -> dict[str, Any]:
    """The row, and the library's time divided by that of our fastest kind."""
    times = {PlanKind(kind): time_us for kind, time_us in row.get("kind_us", {}).items()}
    library_us = times.pop(PlanKind.LIBRARY, None)
    return {**row, "ours_speedup": round(library_us / min(times.values()), 4)} if library_us and times else row


def _name(row: dict[str, Any]) -> str:
    return f"{row['pair']}/m{row['m']}"


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """The geometric mean over the rows that have the figure."""
    values = [row[key] for row in rows if key in row]
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else None


def _least(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    return min((row[key] for row in rows if key in row), default=None)
