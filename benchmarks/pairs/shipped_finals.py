"""Copies the finals of the pairs into the program, for its page of results: tuner/winners/finals/<gpu>.json.

python -m benchmarks.pairs.shipped_finals [--results benchmarks/results/h200] [--out tuner/winners/finals]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.winners.shipped import FINALS

#: Fields for the origin of a row; in a merged file, each row has its own.
_SOURCE = ("gpu", "kernel_version", "commit", "date")


def finals_of(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For each row, by its name: PyTorch, the library, the winner or otherwise our fastest, the verdict, and the
    origin.
    """
    found = {}
    for row in results["rows"]:
        ours = {kind: us for kind, us in row["kind_us"].items() if us is not None and PlanKind(kind).is_ours}
        if not ours or row["kind_us"].get("library") is None:
            continue
        kind = row["winner"] if row["winner"] in ours else min(ours, key=ours.__getitem__)
        found[f"{row['suite']}/{row['pair']}/m{row['m']}"] = {
            "library_us": row["kind_us"]["library"],
            "torch_us": row.get("torch_us"),
            "ours_us": ours[kind],
            "ours": kind,
            "winner": row["winner"],
            "verdict": row["verdict"],
            **{name: row.get("run", results["meta"])[name] for name in _SOURCE},
        }
    return found


def main() -> None:
    """Writes the file of one GPU."""
    arguments = parser_of(__doc__, results=Path("benchmarks/results/h200"), out=FINALS).parse_args()
    found = finals_of(json.loads((arguments.results / "pairs.json").read_text(encoding="utf-8")))
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(found.items()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.results.name}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
