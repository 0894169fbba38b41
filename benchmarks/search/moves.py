"""What one step from a schedule to a neighbour gains, by the trials of recorded jobs.

python -m benchmarks.search.moves SAMPLES.jsonl.gz ... [--least-trials 55] [--most-rows M] [--out FILE]

The files are what `benchmarks.search.measure --samples` wrote. Jobs of pairs count alone; all jobs of one pair on one
model of card count as one shape. There are four kinds of rows:

- ``step``: two trials of one job and kind that differ in one axis. `gain` is by how much the second value is faster
  than the first: the median over shapes of their medians, and the `least` and `most` of these. `faster_in` of `shapes`
  it was faster.
- ``choice``: a fused trial behind the first guesses, by the axis in which it differs from one of the four best before
  it (``far`` where from each in more). `better` of `trials` were faster than all before by more than 0.3 %.
- ``beside``: what candidates with a value do to the library that is timed beside them. `longer` is by how much it took
  longer than in the job's other trials: the median over shapes of their medians, and the `most` of these.
- ``launch``: schedules that were tried both plainly and programmatically. `gain` is by how much the second is faster,
  the median over shapes. `behind` is by how much the best of the plain ones is behind the best when both are launched
  programmatically: the median over shapes, and the `most`.

Axes that change together are one: what a task waits for, and where; the depths of the rings; the tile of an op.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.common.report import write_report
from benchmarks.search.bench import candidate_of
from benchmarks.search.diet import Row, machines
from benchmarks.search.recorded import read, speedup_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import median
from tuner.search.axes import to_params
from tuner.search.seeds import NUM_SEEDS

#: What changes together, and its name.
TOGETHER = {
    **dict.fromkeys(("granularity", "sync_width", "wait_position", "split_order", "part_major"), "waits"),
    **dict.fromkeys(("num_stages", "input_stages", "window"), "rings"),
}
#: A trial is better than all before where it is faster by more than this, which repeats differ by.
BETTER = 1.003
#: Best trials whose neighbours are told apart.
NUM_BEST = 4
#: A step is told where so many shapes have it.
LEAST_SHAPES = 3
#: Two ways to launch are compared where so many schedules of a shape were tried both ways.
LEAST_PAIRS = 8

#: Values by which the library is told apart.
BESIDE = ("weight_hint", "intermediate_hint", "assignment", "epilogue", "startup_prefetch", "swap_ab", "in_band")

#: What a schedule has on each axis.
Values = Mapping[str, str]
#: Axis, value before, value after, and whether tiles have parts.
Step = tuple[str, str, str, bool]


def values_of(schedule: Schedule) -> Values:
    """By axis; those that change together under one name."""
    params, found = to_params(schedule), defaultdict[str, list[str]](list)
    num_tiles = sum(name.startswith("tile_m_") for name in params)
    for name, value in params.items():
        stem, _, op = name.rpartition("_")
        axis = "rasters" if stem.startswith("raster") else "split_k" if stem == "split_k" else name
        axis = f"tile {op}" if stem in ("tile_m", "tile_n", "tile_k") and int(op) < num_tiles else axis
        found[TOGETHER.get(axis, axis)].append(str(value))
    return {axis: " ".join(values) for axis, values in found.items()}


def differences(one: Values, other: Values) -> list[str]:
    """Axes in which two schedules differ; rings are none of these where a tile differs, which they have to hold."""
    found = [axis for axis in one if one[axis] != other[axis]]
    return [axis for axis in found if axis != "rings"] if len(found) > 1 else found


def shape_of(job: Mapping[str, Any]) -> Row:
    """The card and the pair of a job."""
    ops = job["workload"]["ops"]
    return job["target"], " ".join(f"{op['m']}x{op['n']}x{op['k']}{' gated' * bool(op.get('gated'))}" for op in ops)


def trials_of(job: Mapping[str, Any], kind: PlanKind) -> list[tuple[float, Values]]:
    """Speed-up and values of the measured trials of a kind, in their order."""
    found = []
    for trial in job["trials"]:
        candidate = candidate_of(trial["candidate"])
        if candidate.plan_kind is kind and candidate.schedule and (speedup := speedup_of(trial)) is not None:
            found.append((speedup, values_of(candidate.schedule)))
    return found


def steps_of(job: Mapping[str, Any]) -> Iterator[tuple[Step, float]]:
    """Each step that a job made, and its gain."""
    for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL):
        for (before, one), (after, other) in combinations(trials_of(job, kind), 2):
            if len(differing := differences(one, other)) != 1:
                continue
            (axis,) = differing
            has_parts = any(part != "1" for part in one["split_k"].split())
            if one[axis] <= other[axis]:
                yield (axis, one[axis], other[axis], has_parts), after / before - 1
            else:
                yield (axis, other[axis], one[axis], has_parts), before / after - 1


def choices_of(job: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """By which axis the trials behind the first guesses were chosen, and whether they were better."""
    before = list[tuple[float, Values]]()
    for speedup, values in trials_of(job, PlanKind.FUSED):
        if len(before) >= NUM_SEEDS:
            best = sorted(before, key=lambda one: -one[0])[:NUM_BEST]
            near = next((axes[0] for _, one in best if len(axes := differences(one, values)) == 1), "far")
            name = f"{near} {values[near]}" if near == "assignment" else near
            yield name, speedup > BETTER * best[0][0]
        before.append((speedup, values))


def library_beside(job: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Of each trial and each of its values, by how much the library took longer beside it than in the median trial."""
    found = list[tuple[float, Values]]()
    for trial in job["trials"]:
        schedule = candidate_of(trial["candidate"]).schedule
        beside = [round_[1] for round_ in trial.get("rounds", ()) if round_[1] is not None]
        if schedule is not None and trial["outcome"] == "measured" and beside:
            found.append((median(beside), values_of(schedule)))
    usual = median([library_us for library_us, _ in found]) if found else 1.0
    for library_us, values in found:
        yield from (((axis, values[axis]), library_us / usual - 1) for axis in BESIDE if axis in values)


def launches_of(job: Mapping[str, Any]) -> dict[PlanKind, list[tuple[float, float]]]:
    """By programmatic kind: the speed-ups of each schedule that was tried both ways, plainly and so."""
    speeds = defaultdict[PlanKind, dict[Schedule, float]](dict)
    for trial in job["trials"]:
        candidate = candidate_of(trial["candidate"])
        if candidate.schedule and (speedup := speedup_of(trial)) is not None:
            speeds[candidate.plan_kind][candidate.schedule] = speedup
    return {
        kind: [(plain, so[one]) for one, plain in speeds[kind.launched_plainly].items() if one in so]
        for kind, so in list(speeds.items())
        if kind.is_programmatic
    }


def rows_of(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table; what was seen most first."""
    steps, choices = defaultdict[Step, dict[Row, list[float]]](dict), defaultdict[str, list[bool]](list)
    besides = defaultdict[tuple[str, str], dict[Row, list[float]]](dict)
    launches = defaultdict[PlanKind, dict[Row, list[tuple[float, float]]]](dict)
    for job in jobs:
        for step, gain in steps_of(job):
            steps[step].setdefault(shape_of(job), []).append(gain)
        for axis, is_better in choices_of(job):
            choices[axis].append(is_better)
        for value, longer in library_beside(job):
            besides[value].setdefault(shape_of(job), []).append(longer)
        for kind, pairs in launches_of(job).items():
            launches[kind].setdefault(shape_of(job), []).extend(pairs)
    return [*_step_rows(steps), *_choice_rows(choices), *_beside_rows(besides), *_launch_rows(launches)]


def _step_rows(steps: Mapping[Step, Mapping[Row, Sequence[float]]]) -> list[dict[str, Any]]:
    rows = []
    for (axis, before, after, has_parts), of_shape in steps.items():
        gains = [median(gains) for gains in of_shape.values()]
        if len(gains) < LEAST_SHAPES:
            continue
        rows.append(
            {
                "row": "step",
                "axis": axis,
                "before": before,
                "after": after,
                "has_parts": has_parts,
                "pairs": sum(map(len, of_shape.values())),
                "shapes": len(gains),
                "faster_in": sum(gain > 0 for gain in gains),
                "gain": round(median(gains), 4),
                "least": round(min(gains), 4),
                "most": round(max(gains), 4),
            }
        )
    return sorted(rows, key=lambda row: (-row["shapes"], row["axis"], row["before"], row["after"]))


def _choice_rows(choices: Mapping[str, Sequence[bool]]) -> list[dict[str, Any]]:
    rows = [
        {"row": "choice", "axis": axis, "trials": len(found), "better": sum(found)} for axis, found in choices.items()
    ]
    return sorted(rows, key=lambda row: (-row["trials"], row["axis"]))


def _beside_rows(besides: Mapping[tuple[str, str], Mapping[Row, Sequence[float]]]) -> list[dict[str, Any]]:
    rows = []
    for (axis, value), of_shape in sorted(besides.items()):
        longer = [median(found) for found in of_shape.values()]
        if len(longer) < LEAST_SHAPES:
            continue
        rows.append(
            {
                "row": "beside",
                "axis": axis,
                "value": value,
                "trials": sum(map(len, of_shape.values())),
                "shapes": len(longer),
                "longer": round(median(longer), 4),
                "most": round(max(longer), 4),
            }
        )
    return rows


def _launch_rows(
    launches: Mapping[PlanKind, Mapping[Row, Sequence[tuple[float, float]]]],
) -> list[dict[str, Any]]:
    rows = []
    for kind, of_shape in sorted(launches.items()):
        tried = [pairs for pairs in of_shape.values() if len(pairs) >= LEAST_PAIRS]
        if len(tried) < LEAST_SHAPES:
            continue
        behind = [1 - max(pairs)[1] / max(so for _, so in pairs) for pairs in tried]
        rows.append(
            {
                "row": "launch",
                "kind": str(kind),
                "pairs": sum(map(len, tried)),
                "shapes": len(tried),
                "gain": round(median([median([so / plain - 1 for plain, so in pairs]) for pairs in tried]), 4),
                "behind": round(median(behind), 4),
                "most": round(max(behind), 4),
            }
        )
    return rows


def is_asked(job: Mapping[str, Any], least_trials: int, most_rows: int | None) -> bool:
    """Whether a job is a pair's, long enough, and of few enough rows."""
    ops = job["workload"]["ops"]
    is_few = most_rows is None or max(op["m"] for op in ops) <= most_rows
    return len(ops) == 2 and "target" in job and len(job["trials"]) >= least_trials and is_few


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, and writes it where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+")
    parser.add_argument("--least-trials", type=int, default=55, help="of a job")
    parser.add_argument("--most-rows", type=int, help="of a pair")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    jobs = [job for job in read(options.samples) if is_asked(job, options.least_trials, options.most_rows)]
    rows = rows_of(jobs)
    for row in rows:
        print(" ".join(f"{name} {value}" for name, value in row.items()))
    if options.out:
        shapes: Iterable[Row] = {shape_of(job) for job in jobs}
        cards = sorted({card for card, _ in shapes})
        counted = {"jobs": len(jobs), "shapes": len(set(shapes)), "most_rows": options.most_rows}
        write_report(options.out, rows, machines(cards) | counted)


if __name__ == "__main__":
    main()
