"""How often `verify` errs: random small plans and their mutants, against a walk over every interleaving.

python -m benchmarks.cpu.proof [--count 100000] [--seed 1] [--out benchmarks/results/cpu/proof.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common.report import NO_GPU, write_report
from tests.support.proof import counts, judged_plans


def main() -> None:
    """Judges, prints and writes the results file; fails if the judges ever disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/proof.json"))
    arguments = parser.parse_args()
    rows = counts(judged for judged, *_ in judged_plans(arguments.seed, arguments.count))
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    write_report(arguments.out, rows, NO_GPU)
    total = next(row for row in rows if row["mutation"] == "all")
    if any(total[key] for key in ("false_accept", "false_reject", "wrong_reason")):
        raise SystemExit("verify and the walk over every state disagree")


if __name__ == "__main__":
    main()
