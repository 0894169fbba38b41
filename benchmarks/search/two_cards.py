"""Whether two cards of one machine try twice as many schedules a second as one: real jobs, each with a card of its own.

python -m benchmarks.search.two_cards [--seconds 90] [--out FILE]

One job runs on the first card, then one on each, then one on the second: each phase has a third of the seconds. Each
time the service is new, and nothing is built yet. `--gpu simulated:h200` tries the program.
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
from benchmarks.cpu.cluster import NUM_FIRST, rate, submit, trials_of
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import Trial
from tuner.dispatch import LocalDispatcher
from tuner.dispatch.factory import make_evaluators
from tuner.search import SearchProcesses
from tuner.service import Service
from tuner.store import Store

NUM_CARDS = 2
#: Of the jobs' pairs, 16 rows, 4096 in and out.
D_HIDDENS = (14336, 11008)
BAR = 1.9
#: More than a job tries in its time.
MAX_TRIALS = 5000
#: Without so many trials of a job that count, its rate tells nothing.
MIN_COUNTED = 10
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


def run(gpu: str, cards: Sequence[int], seconds: float) -> Phase:
    """A job on each of these cards, for so long.

    Raises:
        SystemExit: there are fewer cards than two, or a job has ended or tried too little by then.
    """
    end = time.monotonic() + seconds
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
            jobs = submit(service, [D_HIDDENS[number] for number in cards], MAX_TRIALS, target_id)
            found = trials_until(service, jobs, end)
            return Phase(
                trials_per_s=rate([sorted(one.finished_at for one in of_job) for of_job in found]),
                outcomes=dict(Counter(type(one.outcome).__name__.lower() for of_job in found for one in of_job)),
                target_id=target_id,
                environment=dispatcher.lane(target_id).environment(),
            )
        finally:
            service.close()
            searches.close()


def trials_until(service: Service, jobs: Sequence[str], end: float) -> list[list[Trial]]:
    """The trials of each job that are recorded at `end`, by the monotonic clock.

    Raises:
        SystemExit: a job is over, or has too few.
    """
    while time.monotonic() < end:
        for job in map(service.job, jobs):
            if job.state.is_final:
                raise SystemExit(f"{job.id} {job.state} before its time was over: {job.reason}")
        time.sleep(0.2)
    found = [trials_of(service, job) for job in jobs]
    if (fewest := min(len(of_job) for of_job in found)) < NUM_FIRST + MIN_COUNTED:
        raise SystemExit(f"a job has {fewest} trials, of which {NUM_FIRST} do not count: give more --seconds")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the results file; the exit code tells whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="auto", help="auto, or simulated:<id>")
    parser.add_argument("--seconds", type=float, default=90.0, help="of the three phases")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    begin, phases = time.monotonic(), dict[str, Phase]()
    for name, cards in (("first", [0]), ("both", [0, 1]), ("second", [1])):
        phases[name] = phase = run(options.gpu, cards, options.seconds / 3)
        now = time.monotonic() - begin
        print(f"{now:.0f} s: {name}: {phase.trials_per_s:.3f} trials/s, {phase.outcomes}", flush=True)
    first, second, both = (phases[name] for name in ("first", "second", "both"))
    ratio = both.trials_per_s / ((first.trials_per_s + second.trials_per_s) / 2)
    raw: dict[str, object] = {f"{name}_per_s": round(phase.trials_per_s, 4) for name, phase in phases.items()}
    raw |= {f"{name}_outcomes": phase.outcomes for name, phase in phases.items()}
    row = at_least_row("trials a second of two cards over those of one", ratio, BAR, seconds=options.seconds, **raw)
    write_report(options.out or results_file(both.target_id, "two_cards"), [row], machine_of(both.environment))
    print(row)
    raise SystemExit(not row["holds"])


if __name__ == "__main__":
    main()
