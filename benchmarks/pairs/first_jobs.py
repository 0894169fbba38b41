"""Whole jobs through the service, on this machine's GPU: what a user gets, and how long it takes.

python -m benchmarks.pairs.first_jobs [--gpu auto] [--trials 60] [--row llama3-8b-m16 ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common.report import write_report
from tuner.client import Client
from tuner.core.problem.workload import Activation, ffn_pair
from tuner.demo import running_server

#: (m, d_in, d_hidden, d_out) by row name.
ROWS = {
    "llama3-8b-m16": (16, 4096, 14336, 4096),
    "llama3-8b-m64": (64, 4096, 14336, 4096),
    "llama3-8b-m512": (512, 4096, 14336, 4096),
    "llama3-8b-m1024": (1024, 4096, 14336, 4096),
    "gpt3-tp8-m512": (512, 12288, 6144, 12288),
}

#: What a report tells of the machine, beside the GPU's name.
_MACHINE = ("driver", "cuda", "clocks_mhz", "kernel_version")


def run_row(client: Client, name: str, num_trials: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Submits one job and waits for its end: what it found, and what each measured schedule took."""
    dims = ROWS[name]
    m, d_in, d_hidden, d_out = dims
    pair = {"kind": "ffn", "m": m, "d_in": d_in, "d_hidden": d_hidden, "d_out": d_out, "activation": "relu"}
    begin = time.monotonic()
    job = client.submit({"pair": pair, "objective": {"l2": "cold"}, "budget": {"trials": num_trials, "seconds": 900}})
    for _ in client.events(job["id"], timeout_s=1200):
        pass
    job_s = time.monotonic() - begin
    job = client.job(job["id"])
    trials = list(client.trials(job["id"]))
    row: dict[str, Any] = {
        "pair": name,
        "m": m,
        "dims": dims,
        "dtype": "fp16",
        "activation": "relu",
        "l2": job["objective"]["l2"],
        "regime": job["objective"]["regime"],
        "simulated": job["simulated"],
        "state": job["state"],
        "reason": job["reason"],
        **_search_figures(trials),
        "job_s": round(job_s, 1),
        "job_s_per_trial": round(job_s / max(1, len(trials)), 2),
    }
    if job["state"] == "succeeded":
        row |= _result_figures(client.best(job["id"]), trials)
    print(row, flush=True)
    return row, _measured(dims, job["objective"]["regime"], trials)


def _measured(dims: tuple[int, int, int, int], regime: str, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every measured schedule of ours with its time: what a forecast is judged by."""
    m, d_in, d_hidden, d_out = dims
    workload = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=Activation.RELU).to_json()
    return [
        {
            "workload": workload,
            "regime": regime,
            "number": trial["number"],
            "plan_kind": trial["candidate"]["plan_kind"],
            "schedule": trial["candidate"]["schedule"],
            **{name: trial["outcome"][name] for name in ("time_us", "library_us", "spread")},
        }
        for trial in trials
        if trial["outcome"]["kind"] == "measured" and trial["candidate"]["schedule"]
    ]


def _search_figures(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the wall time between consecutive recorded outcomes."""
    ends = [datetime.fromisoformat(trial["finished_at"]).timestamp() for trial in trials]
    gaps = [after - before for before, after in pairwise(ends)]
    kinds = Counter(trial["outcome"]["kind"] for trial in trials)
    stages: dict[str, list[float]] = {}
    for trial in trials:
        for stage, seconds in trial["outcome"]["stage_s"].items():
            stages.setdefault(stage, []).append(seconds)
    return {
        "trials": len(trials),
        "measured": kinds["measured"],
        "rejected": kinds["rejected"],
        "failed": Counter(t["outcome"]["failure"] for t in trials if t["outcome"]["kind"] == "failed"),
        "rejected_reasons": sorted({t["outcome"]["reason"] for t in trials if t["outcome"]["kind"] == "rejected"}),
        "failed_reasons": sorted({t["outcome"]["reason"] for t in trials if t["outcome"]["kind"] == "failed"}),
        "trial_s_median": round(statistics.median(gaps), 3) if gaps else None,
        "stage_s_median": {stage: round(statistics.median(values), 4) for stage, values in stages.items()},
    }


def _result_figures(best: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The finals' figures; times are medians over the interleaved rounds of two processes."""
    timed = [row for row in best["finals"] if row["time_us"] is not None]
    fastest: dict[str, dict[str, Any]] = {}
    for row in sorted(timed, key=lambda row: -row["time_us"]):
        fastest[row["candidate"]["plan_kind"]] = row
    ours = min((row for kind, row in fastest.items() if kind != "library"), key=lambda row: row["time_us"])
    outcomes = {trial["number"]: trial["outcome"] for trial in trials}
    return {
        "kind_us": {kind: round(row["time_us"], 2) for kind, row in fastest.items()},
        "best_kind": best["winner"],
        "verdict": best["verdict"],
        "tie_band": best["tie_band"],
        "best_of_ours": ours["candidate"]["plan_kind"],
        "speedup_vs_library": round(ours["speedup"], 4),
        "ci95": ours["speedup_ci95"],
        "reference_us": round(best["reference_us"], 2),
        "rel_error": max(o["rel_error"] for o in outcomes.values() if o["kind"] == "measured"),
        "schedule": ours["candidate"]["text"],
    }


def main() -> None:
    """Runs the rows and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--row", action="append", choices=list(ROWS))
    parser.add_argument(
        "--data", type=Path, help="the service's data; a folder that is removed afterwards if not given"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = arguments.data or Path(scratch)
        with running_server(data, arguments.gpu) as url, Client(url) as client:
            (target,) = client.targets()
            environment = target["environment"]
            machine = {"gpu": environment["gpu_name"], **{k: environment[k] for k in _MACHINE}}
            out = arguments.out or Path(f"benchmarks/results/{target['id'].replace(':', '-')}/first_jobs.json")
            rows: list[dict[str, Any]] = []
            measured: list[dict[str, Any]] = []
            for name in arguments.row or ROWS:
                row, schedules = run_row(client, name, arguments.trials)
                rows.append(row)
                measured += schedules
                write_report(out, rows, machine)  # after every row, so that an interrupted run leaves what it has
                write_report(out.with_name("first_trials.json"), measured, machine)


if __name__ == "__main__":
    main()
