"""The best schedules of each row and plan kind, as data: what a search leaves behind and finals begin with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.rows import ROWS, Row
from tuner.core.legal.legality import check_schedule, kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Objective, Trial
from tuner.core.trial.outcome import Measured
from tuner.errors import IllegalSchedule
from tuner.workers.builder.nvrtc import write_atomically

#: How many of each kind are kept, the fused ones first.
NUM_KEPT = {
    kind: 3 if kind.is_fused else 2 for kind in sorted(PlanKind, key=lambda kind: not kind.is_fused) if kind.is_ours
}
#: Neighbouring rows whose winners are tried first, at most, and priors in all.
NUM_NEIGHBOURS, NUM_PRIORS = 4, 7
#: Rows further off than this are no neighbours: another pair of the same kind is as far as four times the rows.
MAX_DISTANCE = 3.0
_OTHER_PAIR = 2.0


@dataclass(frozen=True, kw_only=True)
class Winner:
    """One of the best of a row's search."""

    candidate: Candidate
    #: Median in the search, microseconds, and the library's over it.
    time_us: float
    speedup: float
    rel_error: float

    def to_json(self) -> dict[str, Any]:
        """`from_json` is its inverse."""
        schedule = self.candidate.schedule
        assert schedule is not None
        return {
            "schedule": schedule.to_json(),
            "text": str(schedule),
            "time_us": round(self.time_us, 3),
            "speedup": round(self.speedup, 4),
            "rel_error": self.rel_error,
        }

    @classmethod
    def from_json(cls, kind: str, data: dict[str, Any]) -> Winner:
        """Inverse of `to_json`."""
        schedule = Schedule.from_json(data["schedule"])
        return cls(
            candidate=Candidate(plan_kind=PlanKind(kind), schedule=schedule),
            time_us=data["time_us"],
            speedup=data["speedup"],
            rel_error=data["rel_error"],
        )


def best_of(trials: Iterable[Trial]) -> list[Winner]:
    """The best measured of each kind of ours, kind by kind, the fastest first; what ended early comes last."""
    measured = [
        (trial.outcome.truncated, trial.outcome.time_us, trial)
        for trial in trials
        if isinstance(trial.outcome, Measured) and trial.candidate.plan_kind.is_ours
    ]
    measured.sort(key=lambda item: item[:2])
    return [
        Winner(candidate=trial.candidate, time_us=o.time_us, speedup=o.speedup, rel_error=o.rel_error)
        for kind, count in NUM_KEPT.items()
        for trial in [trial for _, _, trial in measured if trial.candidate.plan_kind is kind][:count]
        if isinstance(o := trial.outcome, Measured)
    ]


class Winners:
    """The file of one GPU: a row per name, sorted, with the search's own figures."""

    def __init__(self, path: Path) -> None:
        """Reads the file, where there is one."""
        self._path = path
        self._rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def num_trials(self, row: Row) -> int:
        """Of the row's search; 0 where there was none."""
        return int(self._rows.get(row.name, {}).get("trials", 0))

    def of(self, row: Row) -> list[Winner]:
        """The row's, kind by kind, the fastest first; none where it was not searched."""
        kinds = self._rows.get(row.name, {}).get("winners", {})
        return [Winner.from_json(kind, data) for kind in NUM_KEPT for data in kinds.get(kind, ())]

    def put(self, row: Row, winners: Sequence[Winner], figures: dict[str, Any], objective: Objective) -> None:
        """Replaces the row and writes the file; `figures` tell of the search, which was for `objective`."""
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for winner in winners:
            by_kind.setdefault(str(winner.candidate.plan_kind), []).append(winner.to_json())
        asked = {"workload": row.workload.to_json(), "objective": asdict(objective)}
        self._rows[row.name] = {**figures, **asked, "winners": by_kind}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, _text(self._rows).encode())

    def priors(self, row: Row, gpu: Gpu) -> list[Candidate]:
        """What is tried first: the row's own of an earlier search, and its neighbours', where they are legal."""
        near = sorted((distance(row, other), index) for index, other in enumerate(ROWS) if self.of(other))
        rows = [ROWS[index] for away, index in near if away <= MAX_DISTANCE][:NUM_NEIGHBOURS]
        found = (winner.candidate for other in rows for winner in self._telling(other, is_own=other == row))
        legal = dict.fromkeys(candidate for candidate in found if is_legal(row, gpu, candidate))
        return list(legal)[: NUM_PRIORS + (self.num_trials(row) > 0) * sum(NUM_KEPT.values())]

    def _telling(self, row: Row, *, is_own: bool) -> Iterator[Winner]:
        """Of another row only the best two fused, and the best of the launches apart: the others are like them."""
        most = NUM_KEPT if is_own else {PlanKind.FUSED: 2, PlanKind.TWO_LAUNCHES: 1}
        for kind, count in most.items():
            yield from [winner for winner in self.of(row) if winner.candidate.plan_kind is kind][:count]


def _text(rows: dict[str, dict[str, Any]]) -> str:
    """JSON with sorted keys, a line per row's figures and per winner."""
    texts = []
    for name, row in sorted(rows.items()):
        figures = json.dumps({key: value for key, value in row.items() if key != "winners"}, sort_keys=True)
        kinds = [
            f'  "{kind}": [\n' + ",\n".join(f"   {json.dumps(one, sort_keys=True)}" for one in found) + "]"
            for kind, found in sorted(row["winners"].items())
        ]
        texts.append(f' {json.dumps(name)}: {figures[:-1]}, "winners": {{\n' + ",\n".join(kinds) + "}}")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def distance(a: Row, b: Row) -> float:
    """How alike two rows are, 0 for the same: twice the rows is one away; infinity where nothing can be learned."""
    if a == b:
        return 0.0
    if [op.gated for op in a.workload.ops] != [op.gated for op in b.workload.ops] or a.workload.kind != b.workload.kind:
        return math.inf
    is_same = [(op.n, op.k) for op in a.workload.ops] == [(op.n, op.k) for op in b.workload.ops]
    return abs(math.log2(a.m / b.m)) + (0 if is_same else _OTHER_PAIR)


def is_legal(row: Row, gpu: Gpu, candidate: Candidate) -> bool:
    """Whether a candidate of ours can be proven for the row."""
    assert candidate.schedule is not None
    if kind_problem(row.workload, gpu, candidate.plan_kind):
        return False
    try:
        check_schedule(row.workload, gpu, candidate.schedule)
    except IllegalSchedule:
        return False
    return True
