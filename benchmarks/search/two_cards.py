"""Whether two cards of one machine try twice as many schedules a second as one: real jobs, each with a card of its own.

python -m benchmarks.search.two_cards [--trials 200] [--seconds 105] [--out FILE]

A short job on each card first, so that no phase has the starts of processes. Then one job runs on the first card, one
on each, and one on the second. Each job is the same as its card's other one, with an empty build cache and no priors.
The same trials of all jobs count: from the `NUM_FIRST`-th on, up to `--trials` or to what the slowest job has tried
when its phase, a quarter of the seconds, is over. `--gpu simulated:h200` tries the program.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import jobs_over
from benchmarks.common.report import at_least_row, machine_of, results_file, write_report
from benchmarks.cpu.cluster import submit, trials_of
from benchmarks.search.bench import BUILDS
from benchmarks.search.timed import LentEvaluator, card_figures
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.job import Trial
from tuner.dispatch.factory import make_evaluators
from tuner.search import SearchProcesses
from tuner.service import Service
from tuner.winners import ShippedWinners

NUM_CARDS = 2
#: D hiddens of the cards' pairs, 16 rows, 4096 in and out.
D_HIDDENS = (14336, 11008)
BAR = 1.9
#: More than a job tries in its time.
MAX_TRIALS = 5000
#: Trials of a job that do not count: they wait for the card's inputs, and for the compilers' first wave.
NUM_FIRST = 20
#: Of a job in front of all.
NUM_WARM_UP = 8
#: Without this many trials of a job that count, its rate says nothing.
MIN_COUNTED = 20
#: From one look at the jobs to the next: looks take the time of the process that is measured.
_POLL_S = 0.5
#: What a trial of a simulated card takes, seconds.
LATENCY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the machine has done up to a moment, seconds of processor time; see proc_stat(5)."""

    at_s: float
    busy_s: float
    #: Of this process, which proves, renders and records.
    own_s: float

    @classmethod
    def now(cls) -> Load:
        """Up to now."""
        user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(at_s=time.monotonic(), busy_s=(user + nice + system) / ticks, own_s=time.process_time())

    def figures(self, before: Load) -> dict[str, float]:
        """Cores that were busy since then."""
        wall_s = self.at_s - before.at_s
        cores = {"busy_cores": self.busy_s - before.busy_s, "own_cores": self.own_s - before.own_s}
        return {name: round(used_s / wall_s, 2) for name, used_s in cores.items()}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Jobs that ran side by side."""

    #: Of each job, when its trials were recorded, in order, seconds.
    finished_at: list[list[float]]
    #: What it looked like.
    figures: dict[str, Any]

    def trials_per_s(self, num_trials: int) -> float:
        """Trials per of all jobs together; of each the trials after the first ones, up to this many."""
        return sum((num_trials - NUM_FIRST) / (at[num_trials - 1] - at[NUM_FIRST - 1]) for at in self.finished_at)


class Bench:
    """Both cards, opened once."""

    def __init__(self, gpu: str, folder: Path, ends: ExitStack) -> None:
        """`folder` takes builds and jobs; `ends` closes the cards.

        Raises:
            SystemExit: there are fewer cards than two.
        """
        self._folder, self._num_phases = folder, 0
        cards, why = make_evaluators(gpu, build_cache=folder / BUILDS, latency_s=LATENCY_S, num_simulated=NUM_CARDS)
        for card in cards:
            ends.callback(card.close)
        if len(cards) < NUM_CARDS:
            raise SystemExit(f"two cards are needed: {why}")
        print(why, flush=True)
        self.cards: list[Evaluator] = cards[:NUM_CARDS]
        self._threads = [ThreadPoolExecutor(1) for _ in self.cards]
        self._searches = SearchProcesses(NUM_CARDS)
        for ending in (self._searches.close, *(thread.shutdown for thread in self._threads)):
            ends.callback(ending)

    def run(self, numbers: Sequence[int], num_trials: int, seconds: float) -> Phase:
        """A job on each of these cards, until each has tried so much, or for so long.

        Raises:
            SystemExit: a job has ended.
        """
        end = time.monotonic() + seconds
        for file in (self._folder / BUILDS).glob("*"):
            file.unlink()
        lent = [LentEvaluator(self.cards[number], self._threads[number]) for number in numbers]
        data = self._folder / f"data{self._num_phases}"
        self._num_phases += 1
        with jobs_over(*lent, winners=ShippedWinners(), data=data, search=self._searches.search) as jobs:
            names = submit(jobs.service, [D_HIDDENS[number] for number in numbers], MAX_TRIALS, jobs.target_id)
            load = wait_for(jobs.service, names, num_trials, end)
            found = [trials_of(jobs.service, name) for name in names]
        cards = [card_figures(one.take_spans()) for one in lent]
        return Phase(
            finished_at=[sorted(trial.finished_at for trial in of_job) for of_job in found],
            figures={**load, "cards": cards, "jobs": [job_figures(of_job) for of_job in found]},
        )


def wait_for(service: Service, jobs: Sequence[str], num_trials: int, end: float) -> dict[str, float]:
    """Until each job has this many trials, or to `end`, by the monotonic clock; how busy the machine was since all had
    their first ones.

    Raises:
        SystemExit: a job is over.
    """
    begin: Load | None = None
    while time.monotonic() < end:
        found = [service.job(job) for job in jobs]
        for job in found:
            if job.state.is_final:
                raise SystemExit(f"{job.id} {job.state} before its time was over: {job.reason}")
        fewest = min(job.num_trials for job in found)
        if begin is None and fewest >= NUM_FIRST:
            begin = Load.now()
        if fewest >= num_trials:
            break
        time.sleep(_POLL_S)
    return Load.now().figures(begin) if begin else {}


def job_figures(trials: Sequence[Trial]) -> dict[str, Any]:
    """How many trials a job has, by outcome, and seconds of their stages: a median of those that took any time."""
    seen = [trial.outcome.stage_s for trial in trials]
    names = sorted({name for stage_s in seen for name in stage_s})
    middle = {name: sorted(stage_s[name] for stage_s in seen if name in stage_s) for name in names}
    return {
        "trials": len(trials),
        **Counter(type(trial.outcome).__name__.lower() for trial in trials),
        "stage_ms": {name: round(1e3 * of_stage[len(of_stage) // 2], 2) for name, of_stage in middle.items()},
    }


def row_of(phases: dict[str, Phase], most: int) -> dict[str, Any]:
    """The row of the results file: `first`, `both` and `second`, of at most this many trials a job.

    Raises:
        SystemExit: a job has tried too little.
    """
    num_trials = min(most, *(len(at) for phase in phases.values() for at in phase.finished_at))
    if num_trials < NUM_FIRST + MIN_COUNTED:
        raise SystemExit(f"a job has {num_trials} trials, of which {NUM_FIRST} do not count: give more --seconds")
    rates = {name: phase.trials_per_s(num_trials) for name, phase in phases.items()}
    ratio = rates["both"] / ((rates["first"] + rates["second"]) / 2)
    raw: dict[str, object] = {"trials": [NUM_FIRST, num_trials], "cores": len(os.sched_getaffinity(0))}
    raw |= {f"{name}_per_s": round(rate, 4) for name, rate in rates.items()}
    raw |= {name: phase.figures for name, phase in phases.items()}
    return at_least_row("trials a second of two cards over those of one", ratio, BAR, **raw)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the results file; the exit code tells whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto, or simulated:<id>")
    parser.add_argument("--trials", type=int, default=200, help="of each job, at most")
    parser.add_argument("--seconds", type=float, default=105.0, help="of all phases and the start, at most")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    begin, phases, limit_s = time.monotonic(), dict[str, Phase](), options.seconds / 4
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        bench = Bench(options.gpu, Path(name), ends)
        bench.run([0, 1], NUM_WARM_UP, limit_s)
        print(f"{time.monotonic() - begin:.0f} s: the cards are open", flush=True)
        for phase, numbers in (("first", [0]), ("both", [0, 1]), ("second", [1])):
            phases[phase] = bench.run(numbers, options.trials, limit_s)
            print(f"{time.monotonic() - begin:.0f} s: {phase}: {phases[phase].figures}", flush=True)
        row, target_id = row_of(phases, options.trials), bench.cards[0].target.id
        machine = machine_of(bench.cards[0].environment())
    write_report(options.out or results_file(target_id, "two_cards"), [row], machine)
    print({name: value for name, value in row.items() if name not in phases})
    raise SystemExit(not row["holds"])


if __name__ == "__main__":
    main()
