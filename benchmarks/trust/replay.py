"""Whether the preview drops a candidate that would have ended near the best: a replay of recorded raw samples.

python -m benchmarks.trust.replay [--gpu auto] [--trials 60] [--seconds 480] [--quick] [--out FILE]

Under sustained load a candidate is previewed by short samples before its first round (docs/measuring.md). Here every
candidate is previewed and gets its rounds all the same, by searches without priors. Their raw samples are kept in
build/replay-<gpu>.json: a run that was cut goes on. Then the rule is applied to the previews, each time with the best
that the search knew by then, and what it drops is compared with where the candidate ended.

A row for each share of the incumbent's speed-up below which the rule drops. Of the candidates that ended within 2 % of
the best of their search, `near`, so many are `dropped`. `value` is the upper 95 % bound of the true share. The row with
`check` is that of the rule in use. It holds where the bound is at most 2 %, which takes at least 150 candidates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.setting import twin_of
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Evaluator, evaluate
from tuner.core.trial.job import Regime, Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.samples import Round, kept, previews, speedups
from tuner.core.trial.stats import median, proportion_upper_bound
from tuner.search import Searcher
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.timing.stop_rules import PREVIEW

#: Rows of the pairs that are timed under sustained load.
ROWS = (
    "middle/llama3-8b/m256",
    "middle/llama3-70b-tp8-swiglu/m256",
    "prefill-plain/llama3-8b/m512",
    "prefill-swiglu/llama3-8b/m512",
    "prefill-plain/llama3-8b/m2048",
    "prefill-swiglu/llama3-70b-tp8/m2048",
)
#: So near to the best of its search a candidate must not be dropped, relative; and the most that may be, at 95 %.
NEAR = 0.02
MOST_DROPPED = 0.02
SHARES = (0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
NUM_SEEDS = 4

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One candidate of a search."""

    #: Library time over its own, in each short sample and in each round that counts.
    previewed: tuple[float, ...]
    rounds: tuple[float, ...]
    #: Seconds of the card that the rounds took.
    rounds_s: float

    @property
    def speedup(self) -> float:
        """Where it ended."""
        return median(self.rounds)


def seen_of(outcome: Measured) -> Seen | None:
    """The raw samples of a trial; None where it was not previewed, or no round of it counts."""
    previewed, counted = speedups(previews(outcome.rounds)), speedups(kept(outcome.rounds))
    if not previewed or not counted:
        return None
    return Seen(previewed=tuple(previewed), rounds=tuple(counted), rounds_s=_rounds_s(outcome.rounds))


def _rounds_s(rounds: Iterable[Round]) -> float:
    """What rounds take: a sample of 40 ms behind 40 ms of load, of the candidate and of the library."""
    return 2 * 0.08 * sum(one.dropped is None for one in rounds)


def record(evaluator: Evaluator, row: Row, seed: int, num_trials: int) -> list[Seen]:
    """A search in which nothing is dropped; candidates that were not measured are left out."""
    problem = replace(row.problem, objective=replace(row.problem.objective, regime=Regime.SUSTAINED))
    searcher, found = Searcher(Space(row.workload, evaluator.target.gpu), seed=seed, num_trials=num_trials), []
    for number in range(num_trials):
        candidate = searcher.ask()
        if candidate is None:
            break
        outcome, now = evaluate(evaluator, problem, candidate), time.time()
        searcher.tell(
            Trial(
                number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=now, finished_at=now
            )
        )
        if isinstance(outcome, Measured) and candidate.plan_kind.is_ours and (seen := seen_of(outcome)):
            found.append(seen)
    return found


def judge(searches: Sequence[Sequence[Seen]], share: float) -> Json:
    """What a rule with this share drops."""
    rule = replace(PREVIEW, share=share)
    num_near = num_near_dropped = num_dropped = 0
    saved_s = spent_s = 0.0
    for search in searches:
        best, incumbent = max((one.speedup for one in search), default=0.0), None
        for one in search:
            is_dropped = rule.is_hopeless(one.previewed[: rule.min_rounds], incumbent)
            is_near = one.speedup >= (1 - NEAR) * best
            num_near, num_near_dropped = num_near + is_near, num_near_dropped + (is_near and is_dropped)
            num_dropped, spent_s = num_dropped + is_dropped, spent_s + one.rounds_s
            saved_s += one.rounds_s * is_dropped
            if not is_dropped:
                incumbent = max(one.speedup, incumbent or 0.0)
    bound = proportion_upper_bound(num_near_dropped, num_near)
    return {
        "share": share,
        "value": round(bound, 4),
        "bar": MOST_DROPPED,
        "holds": bound <= MOST_DROPPED,
        "near": num_near,
        "near_dropped": num_near_dropped,
        "candidates": sum(map(len, searches)),
        "dropped": num_dropped,
        "saved_share": round(saved_s / spent_s, 3) if spent_s else 0.0,
    }


def report_rows(searches: Sequence[Sequence[Seen]]) -> list[Json]:
    """The row of the rule in use, then one for each share."""
    in_use = {"check": "near_the_best_and_dropped", **judge(searches, PREVIEW.share)}
    return [in_use, *(judge(searches, share) for share in SHARES)]


def searches_here(
    evaluator: Evaluator, names: Sequence[str], num_seeds: int, num_trials: int, limit_s: float, cache: Path
) -> list[list[Seen]]:
    """The searches of an earlier run, and those that are missing, as far as the time goes."""
    begin_s, rows = time.monotonic(), [row for name in names for row in choose_rows(names=[name])]
    data: dict[str, list[Json]] = json.loads(cache.read_text()) if cache.exists() else {}
    wanted = [(f"{row.name} seed {seed} trials {num_trials}", row, seed) for seed in range(num_seeds) for row in rows]
    for name, row, seed in wanted:
        if name in data or time.monotonic() - begin_s > limit_s:
            continue
        data[name] = [vars(one) for one in record(evaluator, row, seed, num_trials)]
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(data))
        print(f"{time.monotonic() - begin_s:6.1f} s  {name}: {len(data[name])} candidates", flush=True)
    return [[_seen(one) for one in data[name]] for name, _, _ in wanted if name in data]


def _seen(data: Json) -> Seen:
    return Seen(**data | {"previewed": tuple(data["previewed"]), "rounds": tuple(data["rounds"])})


def main(arguments: Sequence[str] | None = None) -> None:
    """Records, replays, prints the rows and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no search after that")
    parser.add_argument("--quick", action="store_true", help="one short search: whether it runs, not what it finds")
    parser.add_argument("--cache", type=Path, help="the raw samples; by default build/replay-<gpu>.json")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    names, seeds, trials = (ROWS[:1], 1, 6) if options.quick else (ROWS, NUM_SEEDS, options.trials)
    with tempfile.TemporaryDirectory() as scratch:
        twin = twin_of(options.gpu)
        with closing(twin or GpuSupervisor(usable_gpus()[0], Path(scratch) / "builds")) as evaluator:
            target_id, machine = evaluator.target.id, machine_of(evaluator.environment())
            cache = options.cache or Path("build") / f"replay-{target_id.replace(':', '-')}.json"
            searches = searches_here(evaluator, names, seeds, trials, options.seconds, cache)
    rows = report_rows(searches)
    write_report(options.out or results_file(target_id, "preview"), rows, machine)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
