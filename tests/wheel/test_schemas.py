"""Exports for other autotuners conform to their own JSON schemas, which Kernel Tuner's wheel contains."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tuner
from tuner.client.exports.t1 import problem_of
from tuner.client.exports.t4 import metadata_of, results_of

#: The release whose schemas are followed.
RELEASE = "kernel_tuner==1.5.0"
T4 = "kernel_tuner/schema/T4/1.0.0"
T1 = "kernel_tuner/schema/T1/1.0.0/input-schema.json"
OTHERS: list[dict[str, Any]] = [
    {"kind": "failed", "stage": "launch", "failure": "hang", "reason": "it waits", "stage_s": {"build": 0.5}},
    {"kind": "rejected", "stage": "verify", "reason": "it is too large", "stage_s": {}},
]

Schema = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    """A schema by its path in the wheel."""
    folder = tmp_path_factory.mktemp("schemas")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), RELEASE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return lambda path: dict(json.loads(zipfile.ZipFile(wheel).read(path)))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuner.Result:
    """The result of a small job."""
    data: Path = tmp_path_factory.mktemp("job")
    pair: Any = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
    return tuner.tune(pair, target="simulated:h200", trials=6, data=data, progress=False)


def test_results_follow_the_schema_of_t4(result: tuner.Result, schema: Schema) -> None:
    trials: Any = [*result.trials, *({**result.trials[0], "outcome": outcome} for outcome in OTHERS)]
    found = results_of(result.job, trials)
    assert len(found["results"]) == len(result.trials) + 2
    jsonschema.validate(found, schema(f"{T4}/results-schema.json"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "results": [{}]}, schema(f"{T4}/results-schema.json"))


def test_metadata_follow_the_schema_of_t4_before_and_after_the_end(result: tuner.Result, schema: Schema) -> None:
    for best in (result.best, None):
        jsonschema.validate(metadata_of(result.job, best), schema(f"{T4}/metadata-schema.json"))


def test_a_problem_follows_the_schema_of_t1(result: tuner.Result, schema: Schema) -> None:
    assert result.artifact is not None
    found = problem_of(result.job, result.trials, result.artifact.manifest)
    jsonschema.validate(found, schema(T1))
    del found["KernelSpecification"]["KernelName"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema(T1))
