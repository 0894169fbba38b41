"""What is said of a step of launches that took turns with compiled ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.runtime.decode_layers import OURS, rows_of

ABOUT = {"pair": "a | b", "quick_ms": {"a | b": 4.0}, "from_theirs": 0.03, "from_fp32": 0.021, "theirs_from_fp32": 0.02}
ABOUT |= {"same_tokens": 0.9, "refused": [], "aborted": 0, "failures": {}}


def client(name: str, failure: str = "") -> Any:
    about = {"step": ABOUT} if name == OURS else {"step": {}}
    return SimpleNamespace(name=name, failure=failure, about={} if failure else about)


def rows(*others: tuple[str, float, str]) -> dict[str, dict[str, Any]]:
    clients = [client(OURS), *(client(name, failure) for name, _, failure in others)]
    times = {(OURS, part): [4000.0, 4100.0] for part in ("step", "default carve-out")}
    times |= {(OURS, f"{part} alone"): [3000.0] for part in ("attentions", "blocks")}
    times |= {(name, "step"): [us, us * 1.025] for name, us, failure in others if not failure}
    return {row["check"].split(": ")[1]: row for row in rows_of(1, clients, times)}


def test_each_bar_is_over_the_faster_of_its_family() -> None:
    found = rows(
        ("expanded", 6000.0, ""),
        ("expanded, max-autotune", 5700.0, ""),
        ("grouped", 4700.0, ""),
        ("grouped-exact", 4500.0, ""),
    )
    first, second = (found[f"step over {family} attention, compiled"] for family in ("expanded", "grouped"))
    assert (first["value"], first["bar"], first["holds"]) == (pytest.approx(1.425), 1.40, True)
    assert (first["before"], first["before_ms"]) == ("expanded, max-autotune", 5.7713)
    assert (second["value"], second["before"], second["holds"]) == (pytest.approx(1.125), "grouped-exact", False)
    assert second["parts_ms"] == {"default carve-out": 4.05, "attentions alone": 3.0, "blocks alone": 3.0}
    logits = found["logits of 64 tokens, distance from fp32 over transformers'"]
    assert (logits["value"], logits["holds"]) == (pytest.approx(1.05), True)


def test_what_was_not_ready_is_told() -> None:
    late = "it was not compiled in time"
    found = rows(("expanded", 6000.0, ""), ("expanded, max-autotune", 0.0, late), ("grouped", 0.0, late))
    first, second = (found[f"step over {family} attention, compiled"] for family in ("expanded", "grouped"))
    assert (first["before"], first["late"]) == ("expanded", {"expanded, max-autotune": late})
    assert (second["holds"], second["reason"]) == (False, late)
    [row] = rows_of(1, [client(OURS, late)], {})
    assert (row["holds"], row["reason"]) == (False, late)
