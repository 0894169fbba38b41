"""Whether the preview drops a candidate that would have ended near the best: a replay of recorded raw samples.

python -m benchmarks.trust.replay [--kept] [--orders] [--searches] [--share 0/2] [--meta FILE] [--seconds 480]
    [--cache FILE ...] [--out FILE]

Under sustained load a candidate is previewed by short samples before its first round (docs/measuring.md). Here it gets
its rounds whatever the preview says: `--searches` runs searches without priors, and `--kept` measures the winners that
ship with the program, those of another model of card where this one has none. `--orders` measures the fastest of these
in other orders of its tasks. A job of the service is no source: what its own rule dropped has no rounds, so nobody
knows where it would have ended.

Where two cards share the rows, one run has `--share 0/2` and one `--share 1/2`. What was measured is kept in
build/replay.json, or the first file that `--cache` names: a run that was cut goes on, and a later one has it. Other
files are only read. With `--meta` nothing is measured, and no card is needed. Then the rule is applied to the previews,
each time with the best that was known by then, and what it drops is compared with where the candidate ended.

A row for each share of the incumbent's speed-up below which the rule drops. Of the candidates that ended within 2 % of
the best of their search, `near`, so many are `dropped`. `value` is the upper 95 % bound of the true share. The row with
`check` is that of the rule in use. It holds where the bound is at most 2 %, which takes at least 150 candidates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, recorded_machine, results_file, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.setting import twin_of
from benchmarks.common.workbench import Watch
from benchmarks.trust.previews import Seen, of_orders, of_search, of_winners
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.stats import proportion_upper_bound
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.places import places_here
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.timing.stop_rules import PREVIEW

#: Rows whose kept winners are measured: those first of which most ended near the best.
KEPT_ROWS = (
    "prefill-plain/gpt3-tp8/m1536",
    "prefill-swiglu/llama3-70b-tp8/m1024",
    "prefill-swiglu/llama3-70b-tp8/m1536",
    "prefill-swiglu/llama3-8b/m1536",
    "prefill-swiglu/llama3-8b/m2048",
    "prefill-plain/llama3-8b/m2048",
    "prefill-swiglu/llama3-8b/m1024",
    "prefill-plain/llama3-8b/m1024",
    "prefill-swiglu/llama3-70b-tp8/m512",
    "prefill-plain/gpt3-tp8/m4096",
    "prefill-swiglu/llama3-70b-tp8/m4096",
    "prefill-plain/llama3-8b/m4096",
    "prefill-swiglu/llama3-8b/m4096",
    "prefill-swiglu/llama3-8b/m512",
    "prefill-plain/gpt3-tp8/m512",
    "prefill-plain/llama3-8b/m1536",
    "prefill-plain/gpt3-tp8/m1024",
    "middle/llama3-70b/m128",
    "middle/llama3-70b/m192",
    "middle/gpt3-tp8/m192",
    "independent/512x2048x4096+512x2048x8192/m512",
    "middle/llama3-8b-swiglu/m256",
    "middle/llama3-8b-swiglu/m192",
    "independent/1024x1024x4096+1024x1152x4096/m1024",
    "middle/llama3-8b/m192",
)
#: Rows that are searched.
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
SHARES = (0.75, 0.8, 0.85, 0.87, 0.9, 0.95, 0.98)
NUM_SEEDS = 4
#: What is measured of a row, in the names of the file.
KEPT, ORDERS = "kept", "orders"
#: Other orders of a row's fastest kept winner.
NUM_ORDERS = 16

Json = dict[str, Any]


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


class Kept:
    """What was measured, by name, in a file that is written after each search."""

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        """`others` are files of other runs on cards of the same model, which stay as they are."""
        self._path = path
        self._data: dict[str, list[Json]] = json.loads(path.read_text()) if path.exists() else {}
        self._others = [json.loads(other.read_text()) for other in others]
        self._watch = Watch()

    def has(self, name: str) -> bool:
        """Whether it was measured before."""
        return name in self._data

    def put(self, name: str, seen: Iterable[Seen]) -> None:
        """Adds a search."""
        self._data[name] = [vars(one) for one in seen]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._data))
        print(f"{self._watch.seconds} s  {name}: {len(self._data[name])} candidates", flush=True)

    def all(self) -> list[list[Seen]]:
        """All searches."""
        by_name = {name: search for data in (*self._others, self._data) for name, search in data.items()}
        return [[Seen.from_json(one) for one in search] for search in by_name.values()]


def measure_kept(evaluator: Evaluator, names: Sequence[str], of: str, kept: Kept, limit_s: float) -> None:
    """The kept winners of the rows that are not there yet, or of the fastest other orders, as far as the time goes."""
    watch, rows = Watch(), [row for row in _rows(names) if not kept.has(f"{of} {row.name}")]
    for name, seen in of_winners(evaluator, rows) if of == KEPT else of_orders(evaluator, rows, NUM_ORDERS):
        kept.put(f"{of} {name}", seen)
        if watch.seconds > limit_s:
            break


def measure_searches(
    evaluator: Evaluator, names: Sequence[str], num_seeds: int, num_trials: int, kept: Kept, limit_s: float
) -> None:
    """The searches that are not there yet, as far as the time goes."""
    watch = Watch()
    for seed in range(num_seeds):
        for row in _rows(names):
            name = f"{row.name} seed {seed} trials {num_trials}"
            if not kept.has(name) and watch.seconds <= limit_s:
                kept.put(name, of_search(evaluator, row, seed, num_trials))


def _rows(names: Sequence[str]) -> Iterator[Row]:
    for name in names:
        yield from choose_rows(names=[name])


def main(arguments: Sequence[str] | None = None) -> None:
    """Records, replays, prints the rows and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    parser.add_argument("--searches", action="store_true", help="search, and measure whatever is tried")
    parser.add_argument("--kept", action="store_true", help="measure the winners that ship with the program")
    parser.add_argument("--orders", action="store_true", help="measure the fastest of these in other orders")
    parser.add_argument("--row", action="append", help="instead of the usual ones")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=480.0, help="begin nothing after that")
    parser.add_argument("--quick", action="store_true", help="one short search: whether it runs, not what it finds")
    parser.add_argument("--meta", type=Path, help="measure nothing: the results file that names the card")
    parser.add_argument("--share", default="0/1", help="of the rows, e.g. 0/2: every second one, from the first on")
    parser.add_argument("--cache", type=Path, action="append", help="what was measured; the first is added to")
    parser.add_argument("--out", type=Path, default=results_file("h200", "preview"))
    options = parser.parse_args(arguments)
    first, of = map(int, options.share.split("/"))
    names, seeds, trials = (ROWS[:1], 1, 6) if options.quick else (options.row or ROWS, NUM_SEEDS, options.trials)
    cache, *others = options.cache or [Path("build/replay.json")]
    kept = Kept(cache, others)
    if options.meta:
        machine = recorded_machine(options.meta)
    else:
        with tempfile.TemporaryDirectory() as scratch, closing(_evaluator(options.gpu, Path(scratch))) as evaluator:
            machine = machine_of(evaluator.environment())
            if options.orders:  # the shortest rows first
                measure_kept(evaluator, (options.row or KEPT_ROWS[::-1])[first::of], ORDERS, kept, options.seconds)
            if options.kept:
                measure_kept(evaluator, (options.row or KEPT_ROWS)[first::of], KEPT, kept, options.seconds)
            if options.searches or options.quick:
                measure_searches(evaluator, names[first::of], seeds, trials, kept, options.seconds)
    rows = report_rows(kept.all())
    write_report(options.out, rows, machine)
    for row in rows:
        print(row)


def _evaluator(gpu: str, scratch: Path) -> Evaluator:
    """A simulated card, or this machine's first, with a builder that takes all cores."""
    if twin := twin_of(gpu):
        return twin
    with closing(Builder(scratch / "builds", num_processes=places_here())) as builder:
        return GpuSupervisor(usable_gpus()[0], scratch / "builds", builder=builder)


if __name__ == "__main__":
    main()
