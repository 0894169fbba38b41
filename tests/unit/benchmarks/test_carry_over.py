"""What the benchmark of carry-over takes and says, without a card."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.rows import ROWS
from benchmarks.trust.carry_over import LIBRARY, PAIRS, candidates, figures_of, read, rounds_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for


def test_its_kernels_are_legal_and_differ_in_hints_alone() -> None:
    known = {row.name: row.problem.workload for row in ROWS}
    for pair in PAIRS:
        for candidate in candidates().values():
            assert plans_for(known[pair], CATALOGUE["h100"], candidate)


@dataclass
class Stopwatch:
    """Takes as many microseconds as graphs were timed, and one more behind one called `loud` that nothing was read
    behind."""

    stream: Any = field(default_factory=nullcontext)
    before: str = ""
    num_reads: int = 0

    def enqueue_flush(self) -> None:
        self.num_reads += 1
        self.before = ""

    def sample(self, graph: str) -> Any:
        time_us, self.before = (11.0 if self.before == "loud" else 10.0), graph
        return type("Sample", (), {"time_us": time_us})


def test_what_a_graph_leaves_is_told_by_whom_it_is_behind() -> None:
    graphs = {name: name for name in (LIBRARY, "loud", "quiet", "other")}
    timer = Stopwatch()
    rows = {row["of"]: row["behind_us"] for row in figures_of(rounds_of(timer, graphs, 0, 8))}
    assert timer.num_reads == 0
    assert rows["quiet"] == {LIBRARY: 10.0, "loud": 11.0, "other": 10.0}
    assert set(rows["loud"].values()) == {10.0}
    rows = {row["of"]: row["behind_us"] for row in figures_of(rounds_of(timer, graphs, 0, 8, read))}
    assert timer.num_reads == 32
    assert rows["quiet"]["loud"] == 10.0
