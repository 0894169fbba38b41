"""The file of a schedule for `tuner explain`: written by hand, or the manifest of an artifact."""

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
    """The job's id and the trial's number if `text` is JOB/TRIAL; None for the name of a file, or a line."""
    found = _TRIAL.fullmatch(text)
    return (found[1], int(found[2])) if found else None


def read_schedule(path: Path) -> tuple[Workload, Gpu, Schedule]:
    """The schedule of a file. A given order without a name is named after the file.

    Raises:
        InvalidInput: it cannot be read, or a key is missing or wrong, which the message names.
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
    """Whether it has the form of `POST /jobs`, whereas a manifest has ops."""
    return isinstance(value, dict) and "kind" in value and not ("ops" in value and "m" not in value)


def _workload(value: Any) -> Workload:
    """A workload in the form of a manifest, or of a pair in `POST /jobs`."""
    return workload_of(value) if _is_asked(value) else Workload.from_json(value)


def _schedule(value: Any) -> Schedule:
    """A schedule from JSON, or from its printed line."""
    return read_line(value) if isinstance(value, str) else Schedule.from_json(value)


def _check(asked: dict[str, Any], path: Path) -> None:
    """Checks that every key is known in its object; for a manifest, which has many others, only in its parts.

    Raises:
        InvalidInput: a key is unknown, with its name.
    """
    whole = file_schema()
    whole["properties"]["workload"] = workload_schema()
    if "spec" in asked:
        asked = {name: asked[name] for name in ("workload", "schedule")}
        whole = {**whole, "required": ["workload", "schedule"]}
    for where, problem, remedy in faults(asked, whole):
        raise InvalidInput(str(path), f"{where} {problem}", remedy)


def _measured_on(manifest: Mapping[str, Any]) -> str | None:
    """The GPU of an artifact's job, real or simulated."""
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
