"""Which values of a schedule's axes no schedule near the best uses, by the trials of fair searches.

python -m benchmarks.search.diet SAMPLES.jsonl.gz ... [--least-trials 0] [--within 0.01] [--out FILE]

The files are what `benchmarks.search.measure --samples` wrote of jobs without priors; all jobs of one pair on one model
of card count as one row. A row of the result for each value: in how many rows and trials it was `tried`, how many of
these trials were within a per cent of the best of their row (`near`, and `near_on` for each card), and by how much the
best of them was behind that (`behind`, the median over the rows). `kept` says how many of the winners that ship with
the program for these cards have it, and `kept_near` how many of those that are within a per cent of their row's best.
A value is `unused` where no trial near the best and no such winner has it. It is `judged` where it was tried in half of
the rows and in 30 trials at least. `--least-trials` leaves out shorter jobs.

Numbers that say how much of a thing there is are two values: none (or one), and more.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.report import results_file, write_report
from benchmarks.search.bench import candidate_of
from benchmarks.search.recorded import read, speedup_of
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import median, proportion_upper_bound
from tuner.search.model.axes import to_params
from tuner.winners import ShippedWinners

#: A value that was tried less is not judged.
LEAST_TRIALS, LEAST_SHARE_OF_ROWS = 30, 0.5
#: Numbers of which there is a least, and what it is: the value beside it is "more".
COUNTS = {
    **dict.fromkeys(("window", "startup_prefetch", "reserved_sms", "partition", "band_rows", "band_lag"), 0),
    **dict.fromkeys(("cluster_m", "cluster_n", "cluster_k", "resident_ctas", "ctas_per_sm", "sync_width"), 1),
    **dict.fromkeys(("split_k", "column_chunks"), 1),
}
#: Sizes that are no choice of a kind.
SIZES = ("tile_m", "tile_n", "tile_k", "num_stages", "input_stages", "raster_width")

#: An axis, and a value of it.
Value = tuple[str, str]
#: A card, and a workload as JSON.
Row = tuple[str, str]
#: Of jobs that were recorded before they named their card.
CARD = "h200"


@dataclass(kw_only=True)
class Tally:
    """What became of the trials that have a value."""

    #: Over the best of their row, by row.
    speeds: dict[Row, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: Of the kept winners, over the best of their row.
    kept: list[float] = field(default_factory=list)


def values_of(schedule: Schedule) -> frozenset[Value]:
    """The values that a schedule has; those of all ops under one name."""
    found = set[Value]()
    for name, value in to_params(schedule).items():
        stem, _, op = name.rpartition("_")
        axis = stem if op.isdecimal() else name
        if axis in SIZES:
            continue
        if axis in COUNTS:
            value = str(COUNTS[axis]) if value == COUNTS[axis] else "more"
        found.add((axis, str(value)))
    return frozenset(found)


def trials_of(jobs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Row, Schedule, float]]:
    """Row, schedule and speed-up over the library of each measured trial of ours."""
    for job in jobs:
        row = job.get("target", CARD), json.dumps(job["workload"], sort_keys=True)
        for trial in job["trials"]:
            schedule = candidate_of(trial["candidate"]).schedule
            if schedule is not None and (speedup := speedup_of(trial)) is not None:
                yield row, schedule, speedup


def tallies(
    jobs: Iterable[Mapping[str, Any]], kept: Iterable[tuple[Schedule, float]]
) -> tuple[dict[Value, Tally], list[Row]]:
    """By value; and the rows that there are. `kept` are winners, each with its speed over the best of its row."""
    trials = list(trials_of(jobs))
    best = defaultdict[Row, float](float)
    for row, _, speedup in trials:
        best[row] = max(best[row], speedup)
    found = defaultdict[Value, Tally](Tally)
    for row, schedule, speedup in trials:
        for value in values_of(schedule):
            found[value].speeds[row].append(speedup / best[row])
    for schedule, speed in kept:
        for value in values_of(schedule):
            found[value].kept.append(speed)
    return found, list(best)


def rows_of(found: Mapping[Value, Tally], of: Sequence[Row], within: float) -> list[dict[str, Any]]:
    """The table, by axis; what was seen most first. `of` are all rows."""
    rows, cards = list[dict[str, Any]](), sorted({card for card, _ in of})
    for (axis, value), tally in found.items():
        speeds = [speed for of_row in tally.speeds.values() for speed in of_row]
        near_on = dict.fromkeys(cards, 0)
        for (card, _), of_row in tally.speeds.items():
            near_on[card] += sum(speed >= 1 - within for speed in of_row)
        num_near, kept_near = sum(near_on.values()), sum(speed >= 1 - within for speed in tally.kept)
        is_judged = len(speeds) >= LEAST_TRIALS and len(tally.speeds) >= LEAST_SHARE_OF_ROWS * len(of)
        rows.append(
            {
                "axis": axis,
                "value": value,
                "tried": len(speeds),
                "rows": len(tally.speeds),
                "near": num_near,
                "near_on": near_on,
                "near_bound": round(proportion_upper_bound(num_near, len(speeds)), 4),
                "behind": round(median([1 - max(of_row) for of_row in tally.speeds.values()]), 4) if speeds else None,
                "kept": len(tally.kept),
                "kept_near": kept_near,
                "unused": bool(speeds) and not num_near and not kept_near,
                "judged": is_judged,
            }
        )
    return sorted(rows, key=lambda row: (row["axis"], -row["tried"], row["value"]))


def kept_on(card: str) -> Iterator[tuple[Schedule, float]]:
    """The winners that ship with the program for a card, each with its speed over the best of its row."""
    winners, best = ShippedWinners().of(card), defaultdict[str, float](float)
    for one in winners:
        best[one.source] = max(best[one.source], one.speedup)
    for one in winners:
        if one.candidate.schedule:
            yield one.candidate.schedule, one.speedup / best[one.source]


def machines(cards: Sequence[str]) -> dict[str, Any]:
    """Of the cards, as the results of their searches name them."""
    metas = [json.loads(results_file(card, "search").read_text())["meta"] for card in cards]
    return {name: ", ".join(sorted({meta[name] for meta in metas})) for name in ("gpu", "driver", "cuda")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, and writes it where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+")
    parser.add_argument("--least-trials", type=int, default=0, help="of a job")
    parser.add_argument("--within", type=float, default=0.01, help="of the best of a row, relative")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    jobs = [job for job in read(options.samples) if len(job["trials"]) >= options.least_trials]
    cards = sorted({job.get("target", CARD) for job in jobs})
    kept = [one for card in cards for one in kept_on(card)]
    found, of = tallies(jobs, kept)
    rows = rows_of(found, of, options.within)
    for row in rows:
        mark = ("unused" if row["unused"] else "") + ("" if row["judged"] else ", too few")
        print(
            f"{row['axis']:18} {row['value']:16} {row['tried']:5} trials in {row['rows']:3} of {len(of)} rows, "
            f"{row['near']:4} near, {row['behind']} behind, {row['kept']:4} kept, {row['kept_near']} near  {mark}"
        )
    if options.out:
        counted = {"rows": len(of), "jobs": len(jobs), "kept": len(kept), "within": options.within}
        write_report(options.out, rows, machines(cards) | counted)


if __name__ == "__main__":
    main()
