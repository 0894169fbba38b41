"""What a budget and a patience would have brought on a card, by the trials of long jobs that were recorded there.

python -m benchmarks.search.patience SAMPLES.jsonl.gz ... --meta FILE [--least-trials 200] [--out FILE]

The files are what `benchmarks.search.measure --samples` wrote of jobs without priors; shorter jobs are left out.
`--meta` is the results file of their run. A row per budget and patience, as in `benchmarks.cpu.patience`. Here the time
of a candidate is the one that its trial measured, over the library's. So a lucky figure counts as found, and what a
longer search gains by luck alone is held against the shorter ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.report import recorded_machine, results_file, write_report
from benchmarks.cpu.patience import BUDGETS, PATIENCES, Step, default_row, figures
from benchmarks.search.diet import CARD
from benchmarks.search.recorded import read, speedup_of
from tuner.core.schedule.plan_kinds import PlanKind


def steps_of(job: Mapping[str, Any]) -> list[Step]:
    """The trials of a job, in order."""
    return [_step(trial) for trial in job["trials"]]


def _step(trial: Mapping[str, Any]) -> Step:
    is_ours = PlanKind(trial["candidate"]["plan_kind"]).is_ours
    speedup = speedup_of(trial) if is_ours and not trial["truncated"] else None
    return Step(speedup=speedup, true_us=1 / speedup if speedup else None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Replays and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+")
    parser.add_argument("--meta", type=Path, required=True, help="the results file that names their card")
    parser.add_argument("--least-trials", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    jobs = [job for job in read(options.samples) if len(job["trials"]) >= options.least_trials]
    searches = [steps_of(job) for job in jobs]
    if not searches:
        raise SystemExit(f"no job of {options.least_trials} trials was recorded")
    budgets = [budget for budget in BUDGETS if budget <= options.least_trials]
    rows = [default_row(searches), *(figures(searches, one, patience) for one in budgets for patience in PATIENCES)]
    trials = [len(steps) for steps in searches]
    out = options.out or results_file(jobs[0].get("target", CARD), "patience")
    write_report(out, rows, recorded_machine(options.meta) | {"trials": trials})
    for row in rows:
        if row["patience"] is None or "check" in row:
            print(row)


if __name__ == "__main__":
    main()
