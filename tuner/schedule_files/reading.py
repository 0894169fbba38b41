"""The file of a schedule that `tuner explain` takes: written by hand, or the manifest of an artifact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tuner.core.problem.asked import workload_of
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.given_order import named
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.schedule_files.json_file import read_json
from tuner.schedule_files.schema import faults, file_schema, workload_schema

T = TypeVar("T")
_TRIAL = re.compile(r"(job-\w+)/(\d{1,9})")
_REMEDY = "pass workload, schedule and gpu, or the manifest.json of an artifact"


def named_trial(text: str) -> tuple[str, int] | None:
    """The job's id and the trial's number, where `text` is JOB/TRIAL; None where it is a file's name or a line."""
    found = _TRIAL.fullmatch(text)
    return (found[1], int(found[2])) if found else None


def read_schedule(path: Path) -> tuple[Workload, Gpu, Schedule]:
    """What a file asks to explain. A given order without a name is called as the file is.

    Raises:
        InvalidInput: it cannot be read, or names the key that is missing or wrong.
    """
    asked = read_json(path, _REMEDY if path.exists() else "pass a file, or a job's id")
    if not isinstance(asked, dict):
        raise InvalidInput(str(path), "is not a JSON object", _REMEDY)
    name = asked.get("gpu", _measured_on(asked))
    if not isinstance(name, str) or name not in CATALOGUE:
        problem = "gpu is missing" if name is None else f"gpu {name!a} is unknown"
        raise InvalidInput(str(path), problem, f"use one of {', '.join(CATALOGUE)}")
    workload = _part(asked, "workload", _workload, path)
    schedule = named(_part(asked, "schedule", _schedule, path), path.stem)
    _check(asked | {"workload": workload.to_json()} if _is_asked(asked["workload"]) else asked, path)
    return workload, CATALOGUE[name], schedule


def _is_asked(value: Any) -> bool:
    """Whether it is the form of `POST /jobs`, where a manifest has the ops."""
    return isinstance(value, dict) and "kind" in value and not ("ops" in value and "m" not in value)


def _workload(value: Any) -> Workload:
    """In the form of a manifest, or as `POST /jobs` takes a pair."""
    return workload_of(value) if _is_asked(value) else Workload.from_json(value)


def _schedule(value: Any) -> Schedule:
    """A schedule from JSON, or from its printed line."""
    return read_line(value) if isinstance(value, str) else Schedule.from_json(value)


def _check(asked: dict[str, Any], path: Path) -> None:
    """Checks that every key is known at its place; for a manifest, which has many others, only those of its parts.

    Raises:
        InvalidInput: names the first that is not.
    """
    whole = file_schema()
    whole["properties"]["workload"] = workload_schema()
    if "spec" in asked:
        asked = {name: asked[name] for name in ("workload", "schedule")}
        whole = {**whole, "required": ["workload", "schedule"]}
    for where, problem, remedy in faults(asked, whole):
        raise InvalidInput(str(path), f"{where} {problem}", remedy)


def _measured_on(manifest: Mapping[str, Any]) -> str | None:
    """The GPU of an artifact's job, simulated or not."""
    spec = manifest.get("spec")
    target = spec.get("target_id") if isinstance(spec, dict) else None
    return target.split(":")[-1] if isinstance(target, str) else None


def _part(asked: Mapping[str, Any], key: str, made_of: Callable[[Any], T], path: Path) -> T:
    if key not in asked:
        raise InvalidInput(str(path), f"{key} is missing", _REMEDY)
    try:
        return made_of(asked[key])
    except KeyError as error:
        raise InvalidInput(str(path), f"{key} has no {error.args[0]}", _REMEDY) from error
    except (ValueError, InvalidInput, IllegalSchedule) as error:
        raise InvalidInput(str(path), f"{key} is invalid: {error}", _REMEDY) from error
    except (TypeError, AttributeError) as error:
        raise InvalidInput(str(path), f"{key} does not have the form that manifests use", _REMEDY) from error
