"""How steady a verdict is, by replay of recorded finals: benchmarks/results/<gpu>/verdicts.json.

python -m benchmarks.trust.verdicts [--search benchmarks/results/h100/search.json] [--out FILE]

Two kernels of the same finals are compared, where they are 0.2 to 3 % apart. Half of their rounds are drawn 40 times.
A draw says who is ahead by two rules. By the *interval* the whole 95 % interval is ahead by more than the least band,
which is the project's rule (`tie_band`). By the *median* the median is ahead by more than that band, or by more than
half the interval's width where that is more. A row per regime tells how often two draws disagree, and how often a lead
within the band is called one. It needs no card.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.report import recorded_machine, results_file, write_report
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95, tie_band

LEAST_BAND = FinalsProcedure.min_tie_band
#: Two kernels are compared whose median lead, relative, is within these.
LEADS = (0.002, 0.03)
NUM_DRAWS, NUM_RESAMPLES, LEAST_ROUNDS = 40, 200, 8

Rule = Callable[[float, tuple[float, float]], float]


def by_interval(speedup: float, ci95: tuple[float, float]) -> float:
    """The tie band of the project's rule, relative."""
    return tie_band(speedup, ci95, LEAST_BAND)


def by_median(speedup: float, ci95: tuple[float, float]) -> float:
    """That of the rule before it; only the interval's width counts."""
    low, high = ci95
    return max(LEAST_BAND, (high - low) / 2)


RULES: dict[str, Rule] = {"interval": by_interval, "median": by_median}


def pairs_of(contest: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Of each two finalists that are so far apart, the slower one's time over the other's, round by round."""
    found = []
    for one, other in itertools.combinations(contest, 2):
        if len(one["times_us"]) != len(other["times_us"]) or len(one["times_us"]) < LEAST_ROUNDS:
            continue
        ratios = paired_ratios(other["times_us"], one["times_us"])
        if median(ratios) < 1:
            ratios = [1 / ratio for ratio in ratios]
        if LEADS[0] < median(ratios) - 1 < LEADS[1]:
            found.append(ratios)
    return found


def shares_ahead(ratios: Sequence[float], draw: random.Random) -> dict[str, float]:
    """Of draws of half of the rounds, by each rule the share that calls the faster one ahead."""
    ahead = dict.fromkeys(RULES, 0)
    for _ in range(NUM_DRAWS):
        half = draw.sample(list(ratios), len(ratios) // 2)
        speedup, ci95 = median(half), ratio_ci95(half, num_resamples=NUM_RESAMPLES)
        for name, rule in RULES.items():
            ahead[name] += speedup > 1 + rule(speedup, ci95)
    return {name: count / NUM_DRAWS for name, count in ahead.items()}


def row_of(regime: str, contests: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What both rules say of all pairs of a regime's finals."""
    draw = random.Random(0)
    pairs = [pair for contest in contests for pair in pairs_of(contest)]
    shares = [(median(pair) - 1, shares_ahead(pair, draw)) for pair in pairs]
    near = [share for lead, share in shares if lead <= LEAST_BAND]
    return {
        "regime": regime,
        "pairs": len(pairs),
        "within_the_band": len(near),
        "disagree": {rule: _mean([2 * one[rule] * (1 - one[rule]) for _, one in shares]) for rule in RULES},
        "called_ahead_within_the_band": {rule: _mean([one[rule] for one in near]) for rule in RULES},
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the finals, and writes a row per regime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=Path, default=results_file("h100", "search"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    contests: dict[str, list[Any]] = {"burst": [], "sustained": []}
    for job in json.loads(options.search.read_text())["jobs"]:
        if "contest" in job:
            contests["sustained" if "prefill" in job["job"] else "burst"].append(job["contest"])
    rows = [row_of(regime, found) for regime, found in contests.items()]
    out = options.out or options.search.with_name("verdicts.json")
    write_report(out, rows, recorded_machine(options.search))
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
