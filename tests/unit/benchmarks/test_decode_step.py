"""What is said of compiled decode steps that took turns, and of those that were not ready."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.runtime.decode_step import Task, rows_of

BARS = SimpleNamespace(COMPILED_BAR=1.04, PROGRAMMATIC_BAR=1.06)


def task(model: str, batch: int) -> Task:
    return Task(model=model, compiler="default", batch=batch, layers=2, packs={"pack": Path("a.tunerpack")})


def client(model: str, batch: int, failure: str = "", edges: int = 0, logits: float = 1.0) -> Any:
    about = {"logits": np.full((2, 3), logits), "programmatic_edges": {"a -> b": edges} if edges else {}}
    names = ("step", "step.other") if model == "ours" else ("step",)
    return SimpleNamespace(
        name=str(task(model, batch)), failure=failure, about={} if failure else dict.fromkeys(names, about)
    )


def rows(batch: int, edges: int = 0) -> list[dict[str, Any]]:
    theirs, ours = client("theirs", batch), client("ours", batch, edges=edges, logits=1.01)
    times = {(theirs.name, "step"): [6000.0, 12600.0, 6300.0], (theirs.name, "mlps"): [3000.0]}
    times |= {(ours.name, "step"): [5700.0, 12000.0, 6000.0], (ours.name, "mlps"): [2500.0]}
    return rows_of(task("ours", batch), theirs, ours, times | {(ours.name, "step.other"): [5900.0]}, BARS)


@pytest.mark.parametrize(
    ("batch", "edges", "bar", "holds"), [(1, 0, 1.04, True), (1, 2, 1.06, False), (16, 2, 1.0, True)]
)
def test_a_steps_gain_is_that_of_the_turns_and_its_bar_that_of_its_batch_and_edges(
    batch: int, edges: int, bar: float, holds: bool
) -> None:
    [row] = rows(batch, edges)
    assert row["check"] == f"llama-3-8b, batch {batch}: compiled step"
    assert row["value"] == pytest.approx(1.05, abs=1e-6), "the median of the ratios of each turn"
    assert (row["bar"], row["holds"], row["programmatic_edges"]) == (bar, holds, edges)
    assert (row["before_ms"], row["after_ms"], row["otherwise_ms"]) == (6.3, 6.0, {"step.other": 5.9})
    assert row["logits"] == pytest.approx(0.01)


def test_a_step_with_the_packs_attention_has_a_row_of_its_own_and_the_same_bars() -> None:
    theirs, both = client("theirs", 1), client("both", 1, edges=2)
    times = {(one.name, graph): [us] for one, us in ((theirs, 6000.0), (both, 5000.0)) for graph in ("step", "mlps")}
    [row] = rows_of(task("both", 1), theirs, both, times, BARS)
    assert row["check"] == "llama-3-8b, batch 1: compiled step, the attention by the pack, too"
    assert (row["value"], row["bar"], row["holds"]) == (1.2, 1.06, True)


@pytest.mark.parametrize("late", ["theirs", "ours"])
def test_a_step_that_was_not_ready_does_not_hold_and_says_why(late: str) -> None:
    theirs, ours = (client(model, 64, "it was not compiled in time" * (model == late)) for model in ("theirs", "ours"))
    [row] = rows_of(task("ours", 64), theirs, ours, {}, BARS)
    assert row["check"] == "llama-3-8b, batch 64: compiled step"
    assert (row["holds"], row["reason"]) == (False, "it was not compiled in time")
