"""Whether `tuner fit` makes a useful fit of a card's first jobs: known cards, as if they were new.

python -m benchmarks.simulator.own_fit [--draws 6] [--processes 2] [--seconds 600] [--out <results file>]

Needs no GPU. A row is one card's trials, and a fit to some of its workloads that starts from the rates of the data
sheet, and is accepted or rejected as by `tuner fit`. The workloads that are not drawn (*unseen*) show how good the fit
is.

`width_0.2`: the mean rank correlation after a fit of that width, of workloads left out, and unseen.

- `jobs`: all trials of five jobs on an H200 (own_trials.jsonl.gz); also from the shipped rates.
- `parts`: three or five of the eight pairs of simulator_trials.jsonl.gz of a card.
- `twin`: the same schedules on a simulated card whose true rates are drawn around those of the data sheet, with noise.
- `same`: the same if the data sheet is correct, so that a fit could only do harm.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.common.report import NO_GPU, results_file, write_report
from benchmarks.simulator.judge import data_file
from benchmarks.simulator.trials import read, trial_of
from tuner.core.model.fit import (
    MAX_FITTED_TASKS,
    Linear,
    Trial,
    forecasts,
    from_vector,
    linearise,
    names,
    to_vector,
    weighed,
)  # fmt: skip
from tuner.core.model.judged import shown
from tuner.core.model.own_fit import Evaluated, OwnFit, is_better
from tuner.core.model.rates import CATALOGUE_RATES, Rates, fit_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule

#: Trials of a workload: with five of them, a few more than `tuner fit` needs.
NUM_OF_WORKLOAD = 45
#: Standard deviations of the twin's true rates, as logarithms: of shares, and of times; and of a measurement.
SHARES, TIMES, NOISE = 0.15, 0.5, 0.015
#: Other widths of the penalty, for comparison.
WIDTHS = (0.2, 0.35, 1.4)
#: Smaller changes of a rate, as logarithms, are not shown.
SHOWN_CHANGE = 0.01

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The case of a row."""

    kind: str
    gpu: str
    start: str = "data sheet"
    num_workloads: int = 5
    draw: int = 0


def cases(num_draws: int) -> list[Case]:
    """All rows."""
    jobs = [Case(kind="jobs", gpu="h200", start=start) for start in ("data sheet", "shipped")]
    sizes = [(draw, 5 if draw % 2 == 0 else 3) for draw in range(num_draws)]
    drawn = [("parts", "h100"), ("parts", "h200"), ("twin", "h200"), ("same", "h200")]
    return jobs + [
        Case(kind=kind, gpu=gpu, num_workloads=size, draw=draw) for draw, size in sizes for kind, gpu in drawn
    ]


@cache
def trials_of(gpu_id: str, *, jobs: bool) -> tuple[Trial, ...]:
    """Measured trials: of jobs, or some of each pair of the schedules that the simulator is evaluated with."""
    gpu = CATALOGUE[gpu_id]
    if jobs:
        lines = gzip.decompress(results_file(gpu_id, "own_trials").with_suffix(".jsonl.gz").read_bytes())
        found = []
        for row in map(json.loads, lines.decode().splitlines()[1:]):
            workload, kind = Workload.from_json(row["workload"]), PlanKind(row["plan_kind"])
            candidate = Candidate(plan_kind=kind, schedule=Schedule.from_json(row["schedule"]))
            if not kind.is_side_by_side:
                plans = plans_for(workload, gpu, candidate)
                name, is_programmatic = workload.describe(), kind.is_programmatic
                found.append(Trial(workload=name, plans=plans, time_us=row["time_us"], is_programmatic=is_programmatic))
        return tuple(found)
    data = read(data_file(gpu_id))
    chosen = []
    for pair in data.pairs:
        trials = [trial_of(row, gpu) for row in shown(data.of(pair), 2 * NUM_OF_WORKLOAD, pair, lambda r: r["time_us"])]
        small = [trial for trial in trials if trial.num_tasks <= MAX_FITTED_TASKS]
        chosen += shown(small, NUM_OF_WORKLOAD, pair, attrgetter("time_us"))
    return tuple(replace(trial, dram_bytes=None) for trial in chosen)


#: Derivatives at the start, of trials whose weights are 1, by GPU, start, and whether they come from jobs; processes
#: that are forked later share them.
KNOWN = dict[tuple[str, str, bool], Linear]()


def differentiate(wanted: Sequence[Case], num_processes: int) -> None:
    """Fills `KNOWN`, in several processes."""
    with ProcessPoolExecutor(num_processes, mp_context=get_context("fork")) as pool:
        for gpu_id, start, jobs in dict.fromkeys((one.gpu, one.start, one.kind == "jobs") for one in wanted):
            at = to_vector(start_of(gpu_id, start))
            KNOWN[gpu_id, start, jobs] = linearise(trials_of(gpu_id, jobs=jobs), at, pool)


def start_of(gpu_id: str, start: str) -> Rates:
    """The rates that a fit begins with."""
    fit = fit_of(gpu_id)
    return fit.rates if start == "shipped" and fit else CATALOGUE_RATES


def true_rates(seed: str) -> Rates:
    """Rates of a card that differs from its data sheet."""
    rng, start = random.Random(seed), to_vector(CATALOGUE_RATES)
    widths = [SHARES if name.endswith("_share") else TIMES for name in names()]
    return from_vector(start + np.array([rng.gauss(0.0, width) for width in widths]))


def measured(case: Case) -> list[Trial]:
    """The trials of a case with their times, in the order of `trials_of`."""
    trials = trials_of(case.gpu, jobs=case.kind == "jobs")
    if case.kind in ("jobs", "parts"):
        return list(trials)
    seed = f"{case.kind}/{case.draw}"
    rates, rng = true_rates(seed) if case.kind == "twin" else CATALOGUE_RATES, random.Random(seed)
    found = zip(trials, forecasts(trials, rates), strict=True)
    return [replace(trial, time_us=one.time_us * np.exp(rng.gauss(0.0, NOISE))) for trial, one in found]


def own_fit(case: Case, trials: Sequence[Trial], workloads: Sequence[str]) -> OwnFit:
    """The fit to these workloads."""
    linear = KNOWN[case.gpu, case.start, case.kind == "jobs"]
    known = trials_of(case.gpu, jobs=case.kind == "jobs")
    rows = [row for row, trial in enumerate(trials) if trial.workload in workloads]
    used = weighed([trials[row] for row in rows])
    weights = np.array([trial.weight for trial in used])
    retimed = np.log([trials[row].time_us / known[row].time_us for row in rows])
    nothing = np.zeros((len(rows), len(linear.at)))
    return OwnFit(
        trials=used,
        linear=Linear(
            at=linear.at,
            residuals=np.concatenate([weights * (linear.residuals[rows] + retimed), nothing[:, 0]]),
            slopes=np.concatenate([weights[:, None] * linear.slopes[rows], nothing]),
        ),
    )


def row_of(case: Case) -> Row:
    """Fits, decides, and ranks the workloads that were not drawn."""
    trials = measured(case)
    workloads = list(dict.fromkeys(trial.workload for trial in trials))
    drawn = workloads
    if case.kind != "jobs":
        drawn = random.Random(f"{case.num_workloads}/{case.draw}").sample(workloads, case.num_workloads)
    own = own_fit(case, trials, drawn)
    evaluated, rates = own.evaluated(), own.fitted()
    unseen = [[one for one in trials if one.workload == name] for name in workloads if name not in drawn]
    row: Row = {
        "kind": case.kind,
        "gpu": case.gpu,
        "start": case.start,
        "workloads": len(drawn),
        "trials": len(own.trials),
        "left_out": [[round(one.before, 3), round(one.after, 3)] for one in evaluated],
        **_figures("left_out", evaluated),
        "kept": is_better(evaluated),
        "rates": {
            one.name: [round(one.before, 4), round(one.after, 4)]
            for one in own.changes(rates)
            if one.change >= SHOWN_CHANGE
        },
    }
    if unseen:
        row |= _figures("unseen", [own.ranked(of, rates) for of in unseen])
    for width in WIDTHS:
        means = [fmean(one.after for one in own.evaluated(width))]
        means += [fmean(own.ranked(of, own.fitted(width)).after for of in unseen)] if unseen else []
        row[f"width_{width:g}"] = [round(mean, 3) for mean in means]
    return row


def _figures(what: str, evaluated: Sequence[Evaluated]) -> Row:
    return {
        f"{what}_{name}": [round(of([one.before for one in evaluated]), 3), round(of([o.after for o in evaluated]), 3)]
        for name, of in (("mean", fmean), ("median", median))
    }


def main() -> None:
    """All rows, in processes that share the derivatives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="after this many, counted from the derivatives, no row begins"
    )
    parser.add_argument("--out", type=Path, default=results_file("h200", "own_fit"))
    options = parser.parse_args()
    begin_s, rows, wanted = time.monotonic(), list[Row](), cases(options.draws)
    differentiate(wanted, options.processes)
    print(f"{time.monotonic() - begin_s:.0f} s: derivatives of all trials", flush=True)
    until_s = time.monotonic() + options.seconds
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as pool:
        for row in pool.map(_timed, wanted, [until_s] * len(wanted)):
            if row:
                rows.append(row)
                print({key: value for key, value in row.items() if key != "rates"}, flush=True)
                write_report(options.out, rows, {**NO_GPU, "complete": len(rows) == len(wanted)})
    print(f"{len(rows)} of {len(wanted)} rows", flush=True)


def _timed(case: Case, until_s: float) -> Row | None:
    return row_of(case) if time.monotonic() < until_s else None


if __name__ == "__main__":
    main()
