"""Searches the rows of `benchmarks.common.rows`; the winners are data: tuner/winners/<gpu>.json.

python -m benchmarks.pairs.search [--suite decode-plain] [--row m16] [--trials 100] [--force] [--regime burst]

The searcher and the evaluator are the service's. A few candidates are always on their way, and are built on all cores
while one is measured. A row of 25 trials takes about 10 s in burst, 30 s under sustained load. A row that has as many
trials already is skipped, so a run that was cut goes on where it ended.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.report import commit
from benchmarks.common.rows import SUITES, Row, choose_rows
from benchmarks.common.workbench import BUILD_CACHE, Guesses, Ready, Watch, Workbench, message_of, open_workbench
from benchmarks.pairs.winners import Winners, best_of
from tuner.core.problem.objective import Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured, Rejected
from tuner.errors import TunerError
from tuner.search import Searcher
from tuner.service.finals import best_speedup

#: Candidates on their way at a time: enough to keep the compilers busy, few enough to learn from the others.
DEPTH = 8
SEED = 0


class RowSearch:
    """The search of one row, a trial at a time."""

    def __init__(
        self,
        bench: Workbench,
        row: Row,
        problem: Problem,
        num_trials: int,
        seeds: Sequence[Schedule],
        priors: Iterable[Candidate],
    ) -> None:
        """Begins to build the first candidates."""
        self.row = row
        self.trials: list[Trial] = []
        self._bench = bench
        self._problem = problem
        self._num_left = num_trials
        self._searcher = Searcher(
            Space(row.workload, bench.gpu), seed=SEED, seeds=seeds, priors=priors, num_trials=num_trials
        )
        self._on_their_way: deque[tuple[Candidate, int, Future[Ready]]] = deque()
        self._fill()

    @property
    def is_all_asked(self) -> bool:
        """Whether what is left is on its way."""
        return self._num_left == 0

    def _fill(self) -> None:
        while self._num_left and len(self._on_their_way) < DEPTH:
            candidate = self._searcher.ask()
            if candidate is None:
                if not self._on_their_way:
                    self._num_left = 0  # nothing legal is left untried
                return
            self._on_their_way.append((candidate, len(self.trials), self._bench.begin(self._problem, candidate)))
            self._num_left -= 1

    def step(self) -> bool:
        """Measures the next candidate, one that is built if there is; False where there is none.

        Raises:
            WorkerError: the evaluator does not work.
        """
        if not self._on_their_way:
            return False
        index = next((i for i, (*_, ready) in enumerate(self._on_their_way) if ready.done()), 0)
        self._on_their_way.rotate(-index)
        candidate, num_known, ready = self._on_their_way.popleft()
        self._on_their_way.rotate(index)
        built = ready.result()
        started_at = time.time()
        outcome = self._bench.outcome(self._problem, candidate, built, best_speedup(self.trials))
        finished_at, number = time.time(), len(self.trials)
        trial = Trial(
            number=number,
            num_known=num_known,
            candidate=candidate,
            outcome=outcome,
            started_at=started_at,
            finished_at=finished_at,
        )
        self.trials.append(trial)
        self._searcher.tell(trial)
        self._fill()
        return True


def search_rows(
    bench: Workbench,
    rows: Sequence[Row],
    winners: Winners,
    num_trials: int,
    *,
    regime: Regime | None = None,
    in_parallel: bool = True,
    limit_s: float = math.inf,
) -> list[str]:
    """Searches each row and keeps its winners; the names of the rows that failed, each with its reason.

    `regime` replaces the rows' own: a search in burst takes a fraction of the time, and finals decide anyway. After
    `limit_s` no row is begun.
    """
    failures, total = list[str](), Watch()
    guesses = Guesses((row.workload for row in rows), bench.gpu, SEED, in_parallel=in_parallel)

    def begin(row: Row) -> RowSearch:
        priors = winners.priors(row, bench.gpu)
        return RowSearch(bench, row, problem_of(row, regime), num_trials, guesses.of(row.workload), priors)

    with ThreadPoolExecutor(1) as ahead:
        begun = ahead.submit(begin, rows[0])
        for i, row in enumerate(rows):
            watch, following = Watch(), None
            try:
                search = begun.result()
                while search.step():
                    if search.is_all_asked and following is None and i + 1 < len(rows):
                        following = ahead.submit(begin, rows[i + 1])
                figures = figures_of(search.trials, watch.seconds)
                best = best_of(search.trials)
                if not best:
                    raise TunerError(f"nothing of ours was measured: {figures['reasons']}")
                environment = bench.evaluator.environment()
                figures |= {"kernel_version": environment.kernel_version, "gpu": environment.gpu_name}
                winners.put(row, best, figures, problem_of(row, regime).objective)
                print(describe(row, figures, search.trials), flush=True)
            except Exception as error:  # whatever it is, the other rows may come through
                failures.append(f"{row.name}: {message_of(error)}")
                print(f"{row.name} FAILED after {watch.seconds} s: {message_of(error)}", flush=True)
            if total.seconds > limit_s:
                print(f"the time is up: {len(rows) - i - 1} rows are left", flush=True)
                break
            if i + 1 < len(rows):
                begun = following or ahead.submit(begin, rows[i + 1])
    guesses.close()
    return failures


def problem_of(row: Row, regime: Regime | None) -> Problem:
    """What is asked of the evaluator."""
    problem = row.problem
    return problem if regime is None else replace(problem, objective=replace(problem.objective, regime=regime))


def figures_of(trials: Sequence[Trial], wall_s: float) -> dict[str, Any]:
    """Of a search: what was tried, what became of it, and where."""
    kinds = Counter(type(trial.outcome).__name__.lower() for trial in trials)
    reasons = sorted(
        {
            f"{'rejected' if isinstance(trial.outcome, Rejected) else trial.outcome.kind}: {trial.outcome.reason}"[:200]
            for trial in trials
            if not isinstance(trial.outcome, Measured)
        }
    )
    library = [
        trial.outcome.time_us
        for trial in trials
        if isinstance(trial.outcome, Measured) and trial.candidate.plan_kind is PlanKind.LIBRARY
    ]
    return {
        "trials": len(trials),
        **{kind: kinds[kind] for kind in ("measured", "rejected", "failed")},
        "reasons": reasons[:5],
        "library_us": round(library[0], 3) if library else None,
        "search_s": wall_s,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def describe(row: Row, figures: dict[str, Any], trials: Sequence[Trial]) -> str:
    """One line: wall time, and the best of each kind against the library."""
    best: dict[PlanKind, float] = {}
    for winner in best_of(trials):
        kind = winner.candidate.plan_kind
        best[kind] = max(best.get(kind, 0.0), winner.speedup)
    speedups = "  ".join(f"{kind} {speedup:.3f}" for kind, speedup in best.items())
    counts = f"{figures['measured']} + {figures['rejected']} rejected + {figures['failed']} failed"
    measured_s = sum(trial.finished_at - trial.started_at for trial in trials)
    wall = f"{figures['search_s']:.1f} s, {measured_s:.1f} s of it at the card"
    return f"{row.name}: {wall}; {counts}; library {figures['library_us']} us; {speedups}"


def main() -> None:
    """Searches what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES))
    parser.add_argument("--row", action="append", default=[], help="a row, a pair or m16")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--force", action="store_true", help="search rows again that have as many trials")
    parser.add_argument("--regime", type=Regime, choices=list(Regime), help="instead of the rows' own")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after that")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--winners", type=Path, help="default: tuner/winners/<gpu>.json")
    arguments = parser.parse_args()
    watch = Watch()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.winners or bench.winners_file
        winners = Winners(path)
        chosen = choose_rows(arguments.suite, arguments.row)
        rows = [row for row in chosen if arguments.force or winners.num_trials(row) < arguments.trials]
        print(f"{len(rows)} of {len(chosen)} rows to search", flush=True)
        options = {"regime": arguments.regime, "limit_s": arguments.seconds}
        failures = search_rows(bench, rows, winners, arguments.trials, **options) if rows else []
    print(f"{watch.seconds} s; winners in {path}")
    if failures:
        sys.exit("\n".join(["failed:", *failures]))


if __name__ == "__main__":
    main()
