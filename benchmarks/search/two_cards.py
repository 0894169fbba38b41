"""Whether two cards of one machine try twice as many schedules a second as one: real jobs, each with a card of its own.

python -m benchmarks.search.two_cards [--trials 60] [--seconds 150] [--out FILE]

One job runs on the first card, another one on the second, each alone; then both run side by side. Each time the service
is new, and nothing is built yet. It takes about two minutes on two H200s. `--gpu simulated:h200` tries the program.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.report import at_least_row, machine_of, results_file, write_report
from benchmarks.cpu.cluster import finish_times, rate, submit, trials_of
from tuner.core.trial.evaluator import Environment
from tuner.dispatch import LocalDispatcher
from tuner.dispatch.factory import make_evaluators
from tuner.search import SearchProcesses
from tuner.service import Service
from tuner.store import Store

NUM_CARDS = 2
#: Of the jobs' pairs, 16 rows, 4096 in and out.
D_HIDDENS = (14336, 11008)
BAR = 1.9
#: What a trial of a simulated card takes, seconds.
LATENCY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Jobs that ran side by side."""

    trials_per_s: float
    #: Trials by outcome.
    outcomes: dict[str, int]
    target_id: str
    environment: Environment


def run(gpu: str, cards: Sequence[int], num_trials: int) -> Phase:
    """A job on each of these cards.

    Raises:
        SystemExit: there are fewer cards than two, or a job has failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        evaluators, why = make_evaluators(
            gpu, build_cache=folder / "builds", latency_s=LATENCY_S, num_simulated=NUM_CARDS
        )
        for number, one in enumerate(evaluators):
            if number not in cards:
                one.close()
        if len(evaluators) < NUM_CARDS:
            raise SystemExit(f"two cards are needed: {why}")
        searches = SearchProcesses(os.cpu_count() or 1)
        dispatcher = LocalDispatcher([evaluators[number] for number in cards])
        service = Service(Store.open(folder / "data"), dispatcher, search=searches.search)
        try:
            service.start()
            target_id = dispatcher.targets[0].id
            jobs = submit(service, [D_HIDDENS[number] for number in cards], num_trials, target_id)
            times = finish_times(service, jobs, num_trials)
            outcomes = Counter(type(one.outcome).__name__.lower() for job in jobs for one in trials_of(service, job))
            return Phase(
                trials_per_s=rate(times),
                outcomes=dict(outcomes),
                target_id=target_id,
                environment=dispatcher.lane(target_id).environment(),
            )
        finally:
            service.close()
            searches.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the results file; the exit code tells whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="auto", help="auto, or simulated:<id>")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=150.0, help="behind that nothing is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    begin, phases = time.monotonic(), dict[str, Phase]()
    for name, cards in (("first", [0]), ("second", [1]), ("both", [0, 1])):
        if (now := time.monotonic() - begin) > options.seconds:
            raise SystemExit(f"after {now:.0f} s there is no time left for {name}")
        phases[name] = phase = run(options.gpu, cards, options.trials)
        now = time.monotonic() - begin
        print(f"{now:.0f} s: {name}: {phase.trials_per_s:.3f} trials/s, {phase.outcomes}", flush=True)
    first, second, both = (phases[name] for name in ("first", "second", "both"))
    ratio = both.trials_per_s / ((first.trials_per_s + second.trials_per_s) / 2)
    raw: dict[str, object] = {f"{name}_per_s": round(phase.trials_per_s, 4) for name, phase in phases.items()}
    raw |= {f"{name}_outcomes": phase.outcomes for name, phase in phases.items()}
    row = at_least_row("trials a second of two cards over those of one", ratio, BAR, trials=options.trials, **raw)
    write_report(options.out or results_file(both.target_id, "two_cards"), [row], machine_of(both.environment))
    print(row)
    raise SystemExit(not row["holds"])


if __name__ == "__main__":
    main()
