"""How the simulator ranks schedules of pairs with weights of few bits: benchmarks/results/<gpu>/few_bits_ranks.json.

python -m benchmarks.few_bits.ranks [--seconds 150] [--each 28] [--lines FILE] [--out FILE] [--fit]
python -m benchmarks.few_bits.ranks --again [--fit]    evaluates few_bits_trials.jsonl.gz, without a GPU

Two pairs of each width, with `--each` schedules per pair, spread evenly over a draw: first guesses with neighbours, a
few tilings in many orders, many tilings. They are timed in groups, together with the library. Times that the `--lines`
file already has are not measured again, so a run may be interrupted, and evaluated elsewhere: with --seconds 0, nothing
is timed. --fit also evaluates each pair with rates that were fitted to the others, which takes minutes on all cores.
It takes about 80 seconds on an H200 with 16 cores.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import commit, given_command, laid_out, machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, open_workbench
from benchmarks.few_bits.rows import PAIRS, SCHEMES, Row
from benchmarks.few_bits.search import workload_of
from benchmarks.simulator.data import collect_times
from benchmarks.simulator.trials import pack, trial_of_workload
from tuner.core.model.fit import Fitter, Trial, weighed
from tuner.core.model.judged import Judged, fitted_without
from tuner.core.model.rates import Rates, rates_of
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload

Json = dict[str, Any]
#: The target of each pair.
SPEARMAN_BAR = 0.85
_SCHEMES, _ROWS = ("tensor", "w8a16", "int4"), 16


@dataclass(frozen=True, kw_only=True)
class RankedPair:
    """A pair with one width of weights."""

    row: Row

    @property
    def name(self) -> str:
        """The name on the command line of other programs."""
        return self.row.name

    @property
    def workload(self) -> Workload:
        """The workload of the pair."""
        return workload_of(self.row)


def pairs() -> list[RankedPair]:
    """Two pairs of each width."""
    return [RankedPair(row=Row(scheme=SCHEMES[name], pair=pair, m=_ROWS)) for name in _SCHEMES for pair in PAIRS[:2]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Times the schedules that have no time yet, then evaluates all of them."""
    parser = parser_of(__doc__, "gpu", "out", seconds=150)
    parser.add_argument("--each", type=int, default=28, help="schedules of a pair")
    parser.add_argument("--lines", type=Path, default=Path("build/few_bits_trials.jsonl"))
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    if options.again:
        evaluate_again(fits=options.fit)
        return
    with open_workbench(options.gpu, BUILD_CACHE) as bench:
        gpu, machine = bench.gpu, machine_of(bench.evaluator.environment())
        is_complete = collect_times(bench, options.lines, pairs(), options.seconds, options.each)
    print("complete" if is_complete else "the time limit has passed; run the same command to continue", flush=True)
    rows = judged(options.lines, gpu, fits=options.fit)
    write_report(options.out or results_file(gpu.id, "few_bits_ranks"), rows, machine)
    for row in rows:
        print(json.dumps(row), flush=True)


def evaluate_again(gpu: Gpu = CATALOGUE["h200"], *, fits: bool) -> None:
    """Evaluates the kept schedules with the simulator as it is now, and rewrites the rows of the report, which also
    says when and at which commit that was."""
    report = results_file(gpu.id, "few_bits_ranks")
    rows = judged(results_file(gpu.id, "few_bits_trials").with_suffix(".jsonl.gz"), gpu, fits=fits)
    meta = json.loads(report.read_text())["meta"]
    meta["evaluated"] = f"{datetime.now(UTC).isoformat(timespec='seconds')}, {commit()}: {given_command()}"
    report.write_text(laid_out({"meta": meta, "rows": rows}))
    for row in rows:
        print(json.dumps(row), flush=True)


def judged(lines: Path, gpu: Gpu, *, fits: bool) -> list[Json]:
    """A row per pair: Spearman's rank correlation, and forecast over measured time, with the current rates, and with a
    fit without the pair."""
    text = gzip.decompress(lines.read_bytes()).decode() if lines.suffix == ".gz" else lines.read_text()
    data = pack([json.loads(line) for line in text.splitlines()])
    trials = {
        pair.name: [trial_of_workload(row, pair.workload, gpu) for row in of_it]
        for pair in pairs()
        if (of_it := data.of(pair.name))
    }
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        left_out: dict[str, Rates] = {}
        if fits:
            fitter = Fitter(weighed([one for of in trials.values() for one in of]), pool)
            left_out = fitted_without(fitter, trials)
        return [_row(name, of_it, gpu, left_out.get(name), pool) for name, of_it in trials.items()]


def _row(name: str, trials: Sequence[Trial], gpu: Gpu, left_out: Rates | None, pool: Executor) -> Json:
    found = Judged.of(trials, rates_of(gpu), pool)
    row: Json = {"row": name, "schedules": len(trials), "spearman": found.rank_correlation}
    row |= {"forecast_over_measured": round(found.ratio, 4)}
    if left_out is not None:
        other = Judged.of(trials, left_out, pool)
        row |= {"spearman_left_out": other.rank_correlation, "left_out_over_measured": round(other.ratio, 4)}
    best = row.get("spearman_left_out", row["spearman"])
    return row | {"reaches_bar": best is not None and best >= SPEARMAN_BAR}


if __name__ == "__main__":
    main()
