"""Which values of a schedule's axes no fast schedule uses, by the trials of jobs without priors; needs no GPU.

python -m benchmarks.search.diet FOLDER ... [--least-trials 55] [--out FILE]

The folders are those of `benchmarks.pairs.search --priors none --data`, or a service's. A row for each value: how often
it was `tried`, and in how many workloads (`rows`); how many of these trials were `near`, within 1 % of their workload's
best; by how much the value's best trial was slower than that best (`behind`, the median over the workloads); how many
of the card's shipped winners have it (`kept`). It is `unused` if no trial near the best and no winner has it, and
`judged` if it was tried 30 times, in half of the workloads. Numbers other than sizes are `least` or `more`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import every_item
from benchmarks.common.program import parser_of
from benchmarks.common.report import write_report
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import JobState, PriorsChoice
from tuner.core.trial.outcome import Measured
from tuner.core.trial.stats import median
from tuner.search.model.axes import to_params
from tuner.service.paging import MAX_PAGE
from tuner.store import Store
from tuner.store.jobs.jobs import JobFilter
from tuner.store.jobs.jobs import page as page_of_jobs
from tuner.store.trials.places import TrialFilter
from tuner.store.trials.trials import page as page_of_trials
from tuner.winners import ShippedWinners

NEAR, LEAST_TRIED = 0.01, 30
SIZES = ("tile_m", "tile_n", "tile_k", "num_stages", "input_stages", "raster_width")

#: A workload's digest, a schedule, and its speed-up over the library.
Tried = tuple[str, Schedule, float]


def tried_in(folder: Path, least_trials: int) -> Iterator[tuple[str, Tried]]:
    """The measured trials of a folder's jobs without priors, each after its target's id."""
    measured = TrialFilter(outcome="measured")
    with closing(Store.open(folder)) as store, store.read() as session:
        ended = partial(page_of_jobs, session, limit=MAX_PAGE, chosen=JobFilter(state=JobState.SUCCEEDED))
        for job in every_item(ended):
            if job.spec.priors is not PriorsChoice.NONE or job.num_trials < least_trials:
                continue
            for trial in every_item(partial(page_of_trials, session, job.id, measured, limit=MAX_PAGE)):
                if trial.candidate.schedule is not None and isinstance(trial.outcome, Measured):
                    yield (
                        job.spec.target_id,
                        (job.spec.workload.digest, trial.candidate.schedule, trial.outcome.speedup),
                    )


def values_of(schedule: Schedule) -> frozenset[tuple[str, str]]:
    """The values that a schedule has; those of all ops under one name."""
    found = set[tuple[str, str]]()
    for name, value in to_params(schedule).items():
        stem, _, op = name.rpartition("_")
        axis = stem if op.isdecimal() else name
        if axis not in SIZES:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            found.add((axis, ("more" if value > 1 else "least") if is_number else str(value)))
    return frozenset(found)


def rows_of(tried: Sequence[Tried], winners: Iterable[Schedule]) -> list[dict[str, Any]]:
    """The table, by axis; the values that were tried most come first."""
    best, speeds = defaultdict[str, float](float), defaultdict[tuple[str, str], list[tuple[str, float]]](list)
    for workload, _, speedup in tried:
        best[workload] = max(best[workload], speedup)
    for workload, schedule, speedup in tried:
        for one in values_of(schedule):
            speeds[one].append((workload, speedup / best[workload]))
    kept, rows = Counter(one for schedule in winners for one in values_of(schedule)), list[dict[str, Any]]()
    for (axis, value), found in speeds.items():
        of_workload = {name: max(speed for other, speed in found if other == name) for name, _ in found}
        num_near, num_kept = sum(speed >= 1 - NEAR for _, speed in found), kept[axis, value]
        rows.append(
            {
                "axis": axis,
                "value": value,
                "tried": len(found),
                "rows": len(of_workload),
                "near": num_near,
                "behind": round(median([1 - speed for speed in of_workload.values()]), 4),
                "kept": num_kept,
                "unused": not num_near and not num_kept,
                "judged": len(found) >= LEAST_TRIED and 2 * len(of_workload) >= len(best),
            }
        )
    return sorted(rows, key=lambda row: (row["axis"], -row["tried"], row["value"]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the table."""
    parser = parser_of(__doc__, out=Path("build/diet.json"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--least-trials", type=int, default=55, help="of a job")
    options = parser.parse_args(arguments)
    found = [one for folder in options.folders for one in tried_in(folder, options.least_trials)]
    targets = sorted({target for target, _ in found})
    kept = [one.candidate.schedule for target in targets for one in ShippedWinners().of(target)]
    rows = rows_of([one for _, one in found], filter(None, kept))
    write_report(options.out, rows, {"targets": targets, "trials": len(found), "winners": len(kept)})


if __name__ == "__main__":
    main()
