"""First jobs through the service, on this machine's GPU: a user's results, and their time.

python -m benchmarks.pairs.first_jobs [--gpu auto] [--trials 60] [--row decode-plain/llama3-8b/m16 ...] [--out FILE]

The service starts with an empty folder. The jobs have no priors. With `--priors nearest` they start with the shipped
winners, and with the results of the jobs before them, like a user's.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import write_report
from benchmarks.common.rows import Row, choose_rows
from tuner.client import Client
from tuner.client.documents.documents import Best, FinalRow, Trial
from tuner.demo import running_server

#: The rows that are run by default: those of the front page.
DEFAULT_ROWS = (
    "decode-plain/llama3-8b/m16",
    "decode-plain/gpt3-tp8/m16",
    "decode-swiglu/llama3-8b/m16",
    "decode-swiglu/llama65b-tp8/m64",
    "middle/gpt3-tp8/m192",
)

#: The machine's facts in a report, in addition to the GPU's name.
_MACHINE = ("driver", "cuda", "clocks_mhz", "kernel_version")


def run_row(client: Client, row: Row, num_trials: int, priors: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Submits one job and waits for its end: its results, and the time of each measured schedule."""
    up, down = row.workload.tile_ops
    pair = {
        "kind": "ffn",
        "m": row.m,
        "d_in": up.k,
        "d_hidden": up.n,
        "d_out": down.n,
        "activation": up.activation,
        "gated": up.gated,
    }
    objective = {"l2": "cold", "regime": row.regime}
    begin = time.monotonic()
    budget = {"trials": num_trials, "seconds": 900}
    job = client.submit({"pair": pair, "objective": objective, "budget": budget, "priors": priors})
    for _ in client.events(job["id"], timeout_s=1200):
        pass
    job_s = time.monotonic() - begin
    job = client.job(job["id"])
    trials = list(client.trials(job["id"]))
    figures: dict[str, Any] = {
        "suite": row.suite,
        "pair": row.pair,
        "m": row.m,
        "dims": [up.k, up.n, down.n],
        "dtype": row.workload.dtype,
        "activation": up.activation,
        "gated": up.gated,
        "l2": job["objective"]["l2"],
        "regime": job["objective"]["regime"],
        "simulated": job["simulated"],
        "priors": job["priors"],
        "state": job["state"],
        "reason": job["reason"],
        **_search_figures(trials),
        "job_s": round(job_s, 1),
        "job_s_per_trial": round(job_s / max(1, len(trials)), 2),
    }
    if job["state"] == "succeeded":
        figures |= _result_figures(client.best(job["id"]), trials)
    print(figures, flush=True)
    return figures, _measured(row, trials)


def _measured(row: Row, trials: list[Trial]) -> list[dict[str, Any]]:
    """Each of our measured schedules with its time, for evaluating forecasts."""
    workload = row.workload.to_json()
    return [
        {
            "workload": workload,
            "regime": row.regime,
            "number": trial["number"],
            "plan_kind": trial["candidate"]["plan_kind"],
            "schedule": trial["candidate"]["schedule"],
            **{name: trial["outcome"][name] for name in ("time_us", "library_us", "spread")},
        }
        for trial in trials
        if trial["outcome"]["kind"] == "measured" and trial["candidate"]["schedule"]
    ]


def _search_figures(trials: list[Trial]) -> dict[str, Any]:
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


def _result_figures(best: Best, trials: list[Trial]) -> dict[str, Any]:
    """The finals' figures; times are medians over the interleaved rounds of two processes."""
    timed = [(row["time_us"], row) for row in best["finals"] if row["time_us"] is not None]
    fastest: dict[str, tuple[float, FinalRow]] = {}
    for time_us, row in sorted(timed, key=lambda one: -one[0]):
        fastest[row["candidate"]["plan_kind"]] = time_us, row
    _, ours = min((one for kind, one in fastest.items() if kind != "library"), key=lambda one: one[0])
    assert ours["speedup"] is not None  # because it has a time
    outcomes = {trial["number"]: trial["outcome"] for trial in trials}
    return {
        "kind_us": {kind: round(time_us, 2) for kind, (time_us, _) in fastest.items()},
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
    parser = parser_of(__doc__, "gpu", "trials", "row", "out")
    parser.add_argument("--priors", choices=["none", "nearest"], default="none")
    parser.add_argument("--data", type=Path, help="folder of the service's data; by default a temporary one")
    parser.add_argument("--trials-out", type=Path, help="every measured schedule, too")
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
            for row in choose_rows(names=arguments.row or DEFAULT_ROWS):
                figures, schedules = run_row(client, row, arguments.trials, arguments.priors)
                rows.append(figures)
                measured += schedules
                write_report(out, rows, machine)  # after every row, so that an interrupted run keeps its results
                if arguments.trials_out:
                    write_report(arguments.trials_out, measured, machine)


if __name__ == "__main__":
    main()
