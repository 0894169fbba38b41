"""What a budget and a patience cost and bring, replayed from long searches on the simulated H200.

python -m benchmarks.cpu.patience [--trials 400] [--seeds 2] [--seconds 480] [--out FILE]

Each search has `--trials`, no priors, and one candidate after another. A shorter one tries the same candidates first,
so what a budget or a patience would have found is read off the longer one. A search that ends early spends its last
trials on repeats of the best. These are not replayed: the kinds that they serve differ by their launches alone. What is
compared is the simulated time without noise of the candidate that measured best, which is what a job would pick.
Finished searches are kept in build/patience.json: a run that was cut goes on.

A row per budget and patience: the mean number of trials, and the share of the best of the longest search that was
reached, in the median and at worst. The rows with `check` are those of the defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.report import NO_GPU, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.setting import twin_of
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Evaluator, evaluate
from tuner.core.trial.job import Budget, Trial
from tuner.core.trial.outcome import Measured
from tuner.search import Searcher
from tuner.service.finals.finals import best_speedup
from tuner.service.runner.progress import MIN_PROGRESS

#: Rows of the pairs, with few rows and more.
ROWS = (
    "decode-plain/llama3-8b/m16",
    "decode-plain/gpt3-tp8/m64",
    "decode-swiglu/llama3-8b/m16",
    "decode-swiglu/llama65b-tp8/m64",
    "middle/llama3-8b/m128",
    "middle/llama3-70b-tp8-swiglu/m192",
)
BUDGETS = (20, 40, 60, 80, 100, 150, 200, 300, 400)
PATIENCES = (10, 15, 20, 25, 30, 40, 60, 80, None)
#: The least share of what the longest search found that the default budget must find, in the median.
LEAST_SHARE = 0.98
CACHE = Path("build/patience.json")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One trial of a search; of ours that was measured to its end, else without figures."""

    #: As measured, and the simulated time without noise, microseconds.
    speedup: float | None
    true_us: float | None


def search(evaluator: Evaluator, row: Row, seed: int, num_trials: int) -> list[Step]:
    """A search as a job without priors makes it, one candidate after another."""
    space, incumbent, steps = Space(row.workload, evaluator.target.gpu), None, list[Step]()
    searcher = Searcher(space, seed=seed)
    while len(steps) < num_trials and (candidate := searcher.ask()) is not None:
        outcome = evaluate(evaluator, row.problem, candidate, incumbent)
        now = time.time()
        number = len(steps)
        trial = Trial(
            number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=now, finished_at=now
        )
        searcher.tell(trial)
        incumbent = best_speedup([trial], incumbent)
        steps.append(Step(speedup=best_speedup([trial]), true_us=_true_us(trial)))
    return steps


def _true_us(trial: Trial) -> float | None:
    metrics = trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
    return next((metric.value for metric in metrics if metric.tag == "noise_free_time"), None)


def replay(steps: Sequence[Step], budget: int, patience: int | None) -> tuple[int, float]:
    """How many trials a search takes with them, and the time without noise of what it would pick, microseconds."""
    best, best_us, reference, num_since, num_taken = 0.0, float("inf"), 0.0, 0, 0
    for step in steps[:budget]:
        num_taken, num_since = num_taken + 1, num_since + 1
        if step.speedup is not None and step.true_us is not None:
            if step.speedup > best:
                best, best_us = step.speedup, step.true_us
            if step.speedup > reference * (1 + MIN_PROGRESS):
                reference, num_since = step.speedup, 0
        if patience is not None and num_since >= patience:
            break
    return num_taken, best_us


def figures(searches: Sequence[Sequence[Step]], budget: int, patience: int | None) -> dict[str, Any]:
    """A row: the mean number of trials, and the shares that were reached."""
    found = [replay(steps, budget, patience) for steps in searches]
    shares = [replay(steps, len(steps), None)[1] / best_us for steps, (_, best_us) in zip(searches, found, strict=True)]
    return {
        "budget": budget,
        "patience": patience,
        "mean_trials": round(statistics.mean(num_taken for num_taken, _ in found), 1),
        "median_share": round(statistics.median(shares), 4),
        "worst_share": round(min(shares), 4),
    }


def default_row(searches: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """The row of the defaults, against what they must find."""
    row = figures(searches, Budget.trials, Budget.patience)
    value = row["median_share"]
    return {
        "check": "share_of_the_defaults",
        "value": value,
        "least": LEAST_SHARE,
        "holds": value >= LEAST_SHARE,
        **row,
    }


def searches_here(rows: Sequence[Row], num_seeds: int, num_trials: int, limit_s: float) -> dict[str, list[Step]]:
    """The searches of an earlier run, and those that are missing, as far as the time goes."""
    twin, begin_s = twin_of("simulated:h200"), time.monotonic()
    assert twin is not None
    kept: dict[str, list[list[float | None]]] = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    names = {f"{row.name} seed {seed} trials {num_trials}": (row, seed) for seed in range(num_seeds) for row in rows}
    for name, (row, seed) in names.items():
        if name in kept:
            continue
        if time.monotonic() - begin_s > limit_s:
            break
        kept[name] = [[step.speedup, step.true_us] for step in search(twin, row, seed, num_trials)]
        CACHE.parent.mkdir(exist_ok=True)
        CACHE.write_text(json.dumps(kept))
        print(f"{time.monotonic() - begin_s:6.1f} s  {name}", flush=True)
    return {name: [Step(speedup=a, true_us=b) for a, b in kept[name]] for name in names if name in kept}


def main() -> None:
    """Searches, replays and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no search after that")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/patience.json"))
    arguments = parser.parse_args()
    rows = [row for name in ROWS for row in choose_rows(names=[name])]
    found = searches_here(rows, arguments.seeds, arguments.trials, arguments.seconds)
    searches = list(found.values())
    budgets = [budget for budget in BUDGETS if budget <= arguments.trials]
    table = [figures(searches, budget, patience) for budget in budgets for patience in PATIENCES]
    meta = {**NO_GPU, "searches": list(found), "complete": len(found) == len(rows) * arguments.seeds}
    write_report(arguments.out, [default_row(searches), *table], meta)
    for row in (default_row(searches), *(one for one in table if one["median_share"] >= LEAST_SHARE)):
        print(row)


if __name__ == "__main__":
    main()
