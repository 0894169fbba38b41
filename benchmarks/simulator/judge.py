"""Fits the simulator to the measured schedules, and evaluates its forecasts for a pair that was left out.

python -m benchmarks.simulator.judge [--data build/simulator_data.jsonl] [--fit] [--trials 40] [--out <results file>]

Needs no GPU. `--data` packs the lines of `benchmarks.simulator.data` into benchmarks/results/<gpu>/; `--fit` fits to
all pairs and writes tuner/core/model/fits/<gpu>.json, then to all pairs but one, for each pair, which takes minutes on
all cores. Without it, the fits in the results are evaluated again. Each fit uses `--trials` schedules of each pair,
drawn by a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.report import results_file, write_report
from benchmarks.simulator.trials import DataSet, counted_bytes, pack, read, trial_of, write
from tuner.core.model.fit import Fitter, Forecast, weighed
from tuner.core.model.judged import Judged, fitted_to_all, fitted_without, shown
from tuner.core.model.rates import Fit, Rates
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.trial.stats import rank_correlation, selection_regret

FITS = Path("tuner/core/model/fits")
SEED = 1
NUM_TRUSTED = 10
#: Minimum schedules of a tiling to measure the effect of order, and the minimum difference in multiples of the noise.
MIN_ORDERS, MIN_SPREAD = 8, 3.0
#: Targets.
SPEARMAN_BAR, REGRET_BAR, DRAM_BAR = 0.85, 0.05, 0.15

Row = dict[str, Any]


def data_file(gpu_id: str) -> Path:
    """The file of the measured schedules."""
    return results_file(gpu_id, "simulator_trials").with_suffix(".jsonl.gz")


def chosen(data: DataSet, per_pair: int) -> list[Row]:
    """The schedules of each pair that a fit uses."""
    of_pairs = [shown(data.of(pair), per_pair, f"{SEED}/{pair}", itemgetter("time_us")) for pair in data.pairs]
    return [row for of_pair in of_pairs for row in of_pair]


def judge(data: DataSet, pair: str, rates: Rates, gpu: Gpu, pool: Executor | None = None) -> Row:
    """The simulator's accuracy for a pair, with rates that were fitted without it."""
    rows = data.of(pair)
    found = Judged.of([trial_of(row, gpu) for row in rows], rates, pool)
    within = spearman_in_tilings(rows, found.forecasts, data.noise(pair))
    errors = [
        one.dram_bytes / counted - 1
        for row, one in zip(rows, found.forecasts, strict=True)
        if (counted := counted_bytes(row))
    ]
    return {
        "pair": pair,
        "m": int(pair.rsplit("/m", 1)[1]),
        "schedules": len(rows),
        "spearman": _rounded(found.rank_correlation),
        "spearman_in_tiling": _rounded(median(within)) if within else None,
        "tilings_compared": len(within),
        "regret_top10": _rounded(selection_regret(found.forecast_us, found.measured_us, NUM_TRUSTED)),
        "counted": len(errors),
        "dram_error_median": _rounded(median(map(abs, errors))) if errors else None,
        "time_ratio_median": _rounded(found.ratio),
        "noise": _rounded(data.noise(pair)),
        "best_us": min(found.measured_us),
        "rates": rates.to_json(),
    }


def spearman_in_tilings(rows: Sequence[Row], found: Sequence[Forecast], noise: float) -> list[float]:
    """Spearman's correlation within each tiling measured in many orders, if the orders differ by more than the
    noise."""
    by_tiling: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, one in zip(rows, found, strict=True):
        by_tiling[json.dumps(row["schedule"]["tiling"])].append((one.time_us, row["time_us"]))
    correlations = []
    for times in by_tiling.values():
        predicted, measured = zip(*times, strict=True)
        if len(times) >= MIN_ORDERS and max(measured) / min(measured) - 1 > MIN_SPREAD * noise:
            correlation = rank_correlation(predicted, measured)
            correlations += [] if correlation is None else [correlation]
    return correlations


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def summary(rows: Sequence[Row]) -> Row:
    """The requested figures, with their targets."""
    within, errors = (
        [row[figure] for row in rows if row[figure] is not None]
        for figure in ("spearman_in_tiling", "dram_error_median")
    )
    return {
        "pair": "all",
        "spearman_median": median(row["spearman"] for row in rows),
        "spearman_bar": SPEARMAN_BAR,
        "spearman_in_tiling_median": median(within) if within else None,
        "regret_top10_worst": max(row["regret_top10"] for row in rows),
        "regret_bar": REGRET_BAR,
        "dram_error_median": median(errors) if errors else None,
        "dram_bar": DRAM_BAR,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows of the pairs as in docs/simulator.md."""
    head = "| pair | schedules | Spearman | within a tiling | regret | DRAM bytes | forecast over measured |"
    lines = [head, "| " + " | ".join(["---"] * 7) + " |"]
    for row in rows:
        if row["pair"] == "all":
            continue
        within = "–" if row["spearman_in_tiling"] is None else f"{row['spearman_in_tiling']:.2f}"
        error = "–" if row["dram_error_median"] is None else f"{row['dram_error_median']:.1%}"
        lines.append(
            f"| {row['pair']} | {row['schedules']} | {row['spearman']:.3f} | {within} ({row['tilings_compared']}) "
            f"| {row['regret_top10']:.1%} | {error} | {row['time_ratio_median']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def earlier_fits(results: Path) -> tuple[dict[str, Rates], int]:
    """The fit that each pair was evaluated with, and its number of schedules per pair."""
    report = json.loads(results.read_text())
    rates = {row["pair"]: Rates.from_json(row["rates"]) for row in report["rows"] if "rates" in row}
    return rates, report["meta"]["fitted_per_pair"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Packs, fits and judges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="h200", help="catalogue id of the measured GPU")
    parser.add_argument("--data", type=Path, help="lines of benchmarks.simulator.data, to be packed first")
    parser.add_argument("--fit", action="store_true", help="fit again; otherwise only evaluate")
    parser.add_argument("--trials", type=int, default=40, help="schedules of each pair for a new fit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    gpu, out = CATALOGUE[options.gpu], options.out or results_file(options.gpu, "simulator")
    if options.data:
        write(data_file(gpu.id), pack([json.loads(line) for line in options.data.read_text().splitlines()]))
    data, begin_s = read(data_file(gpu.id)), time.monotonic()
    per_pair: int = options.trials
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        if options.fit:
            fitter = Fitter(weighed([trial_of(row, gpu) for row in chosen(data, per_pair)]), pool)
            _keep(fitted_to_all(fitter), gpu, data)
            print(f"{time.monotonic() - begin_s:.0f} s: fitted to all pairs", flush=True)
            rates = fitted_without(fitter, data.pairs)
        else:
            rates, per_pair = earlier_fits(out)
        rows = []
        for pair in data.pairs:
            rows.append(judge(data, pair, rates[pair], gpu, pool))
            print({key: value for key, value in rows[-1].items() if key != "rates"}, flush=True)
    print(summary(rows))
    machine = {key: data.meta[key] for key in ("gpu", "driver", "cuda", "clocks_mhz", "kernel_version")}
    measured = {"measured_by": data.meta["commit"], "fitted_per_pair": per_pair}
    write_report(out, [*rows, summary(rows)], {**machine, **measured})


def _keep(rates: Rates, gpu: Gpu, data: DataSet) -> None:
    """Writes the simulator's fit."""
    fit = Fit(
        rates=rates,
        gpu=gpu.id,
        gpu_name=data.meta["gpu"],
        date=datetime.now(UTC).date().isoformat(),
        commit=data.meta["commit"],
        num_trials=len(data.rows),
    )
    FITS.mkdir(exist_ok=True)
    (FITS / f"{gpu.id}.json").write_text(json.dumps(fit.to_json(), indent=1) + "\n")


if __name__ == "__main__":
    main()
