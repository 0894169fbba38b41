"""T4: results of an autotuning run in the format of other autotuners, and the environment of the measurement.

Source: the schemas T4/1.0.0 `results-schema.json` and `metadata-schema.json` of Kernel Tuner. In this format, times are
in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner import __version__
from tuner.client.documents.documents import Best, JobDetail, Trial
from tuner.client.exports.axes import axes_of
from tuner.versions import DISTRIBUTION

#: Version of the schemas.
SCHEMA_VERSION = "1.0.0"
#: The key for our own fields, which readers of T4 ignore.
OWN = "tuner"

#: T4's word for each kind of failure; all others are `runtime`.
_INVALID = {
    "compile_error": "compile",
    "compile_timeout": "compile",
    "wrong_numbers": "correctness",
    "overwrite": "correctness",
    "hang": "timeout",
}
_MS = 1e-3
_S_IN_MS = 1e3


def results_of(job: JobDetail, trials: Sequence[Trial]) -> dict[str, Any]:
    """The document of results: a row per trial."""
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {"timeunit": "milliseconds"},
        "results": [_result(trial) for trial in trials],
        OWN: {
            "job": {name: job[name] for name in ("id", "workload", "pair", "target", "simulated", "objective", "seed")},
            "version": __version__,
        },
    }


def _result(trial: Trial) -> dict[str, Any]:
    outcome = trial["outcome"]
    is_measured = outcome["kind"] == "measured"
    return {
        "timestamp": trial["finished_at"],
        "configuration": axes_of(trial["candidate"]),
        "objectives": ["time"],
        "times": _times(trial),
        "invalidity": _invalidity(trial),
        "correctness": 1 if is_measured else 0,
        "measurements": [*_measurements(trial), {"name": "simulated", "value": int(trial["simulated"]), "unit": ""}],
        OWN: {
            "number": trial["number"],
            "simulated": trial["simulated"],
            "candidate": {name: trial["candidate"][name] for name in ("plan_kind", "schedule")},
        },
    }


def _times(trial: Trial) -> dict[str, Any]:
    outcome = trial["outcome"]
    stages = outcome["stage_s"]
    runtimes = [one * _MS for one in outcome["samples_us"]] if outcome["kind"] == "measured" else []
    named = {"compilation_time": "build", "validation": "check", "benchmark": "time"}
    return {"runtimes": runtimes} | {name: stages[stage] * _S_IN_MS for name, stage in named.items() if stage in stages}


def _invalidity(trial: Trial) -> str:
    outcome = trial["outcome"]
    if outcome["kind"] == "measured":
        return "correct"
    return "constraints" if outcome["kind"] == "rejected" else _INVALID.get(outcome["failure"], "runtime")


def _measurements(trial: Trial) -> list[dict[str, Any]]:
    outcome = trial["outcome"]
    if outcome["kind"] != "measured":
        return [{"name": "reason", "value": outcome["reason"], "unit": ""}]
    return [
        {"name": "time", "value": outcome["time_us"] * _MS, "unit": "ms"},
        {"name": "library_time", "value": outcome["library_us"] * _MS, "unit": "ms"},
        {"name": "speedup", "value": outcome["speedup"], "unit": ""},
        {"name": "rel_error", "value": outcome["rel_error"], "unit": ""},
        *({"name": one["tag"], "value": one["value"], "unit": one["unit"]} for one in outcome["metrics"]),
    ]


def metadata_of(job: JobDetail, best: Best | None) -> dict[str, Any]:
    """The metadata document: the GPU and the programs, taken from the result; None if there is no result."""
    environment = None if best is None else dict(best["environment"])
    title = f"{DISTRIBUTION} {__version__}: {job['workload']} on {job['target']}"
    simulated = "; simulated: it never ran on a card" if job["simulated"] else ""
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "zenodo": {"title": title, "description": f"the trials of {job['id']}{simulated}"},
            "hardware": {"hardware_description": [{"gpu": environment["gpu_name"]}] if environment else []},
            "environment": {"device_query": environment or {}, "requirements": [f"{DISTRIBUTION}=={__version__}"]},
        },
    }
