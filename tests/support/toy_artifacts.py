"""Artifacts of ops from test packages, built in a process that has the package, as bytes of a zip."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from tests.support import toys

_MAKE = """
import sys
import tempfile
import zipfile
from pathlib import Path
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.joint import any_space_of
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.search.guesses.seeds import first_guesses
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare
import json
workload, gpu = Workload.from_json(json.loads({workload!r})), CATALOGUE["h200"]
schedule = next(iter(first_guesses(any_space_of(workload, gpu), 0)))
candidate = Candidate(plan_kind=PlanKind({kind!r}), schedule=schedule)
with tempfile.TemporaryDirectory() as folder:
    builder = Builder(Path(folder))
    ready = prepare(workload, gpu, candidate, builder, {{}})
    environment = Environment(gpu_name="NVIDIA H200", simulated=False, cuda="13.0")
    for one in ready.work.own:
        one.check()
    made = assemble(
        Problem(workload=workload, objective=Objective()), candidate, ready.plans, ready.source, ready.work.shared,
        environment, {{}}, 55, own=own_kernels(workload, gpu, candidate, ready.work.own),
    )
    builder.close()
with zipfile.ZipFile({path!r}, "w") as archive:
    for name, data in sorted(made.files.items()):
        archive.writestr(zipfile.ZipInfo(name), data)
"""


def made(site: Path, folder: Path, ops: list[dict[str, Any]], *, dtype: str = "bf16", kind: str) -> dict[str, bytes]:
    """The files of the first guess's artifact, built for an H200; `site` has the packages."""
    path = folder / "made.zip"
    workload = json.dumps({"kind": "chain", "ops": ops, "dtype": dtype})
    toys.run(_MAKE.format(workload=workload, kind=kind, path=str(path)), site)
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
