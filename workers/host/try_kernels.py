"""Runs fetched kernels on this machine's card: are their numbers right, and what do they gain over the library here?

python -m tuner.workers.host.try_kernels FOLDER

Each folder in FOLDER holds one artifact's files. A line of JSON on stdout answers for each, in the order of names. The
plans are proven once more, and must have the words that the artifact has; the cubin is the artifact's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import IllegalSchedule, PlanError, WorkerError

from ..protocol.messages import Work
from ..source.launchable import Launchable, LaunchRefused, Ties, cubin_digest
from .cards import usable_gpus
from .gpu_process import ChildLost
from .supervisor import GpuSupervisor

#: Rounds in which a kernel and the library take turns.
NUM_ROUNDS = 20


def problem_of(manifest: Mapping[str, Any]) -> Problem:
    """What the kernel was tuned for."""
    objective = manifest["objective"]
    return Problem(
        workload=Workload.from_json(manifest["workload"]),
        objective=Objective(l2=CacheState(objective["l2"]), regime=Regime(objective["regime"])),
    )


def work_of(files: Mapping[str, bytes], gpu: Gpu) -> Work:
    """What to launch on a card: the artifact's cubin beside plans that are proven for that card.

    Raises:
        LaunchRefused: it has no cubin, is of another architecture, or its plan is not the one that is proven here.
        IllegalSchedule, PlanError: the schedule is not for that card.
    """
    manifest = json.loads(files["manifest.json"])
    kernel, kind = manifest["kernel"], PlanKind(manifest["plan_kind"])
    if kernel["cubin"] is None:
        raise LaunchRefused("it was simulated: it has no cubin")
    if kernel["arch"] != gpu.arch:
        raise LaunchRefused(f"it was built for {kernel['arch']}, and this card is {gpu.arch}")
    workload = Workload.from_json(manifest["workload"])
    schedule = Schedule.from_json(manifest["schedule"])
    plans = plans_for(workload, gpu, Candidate(plan_kind=kind, schedule=schedule))
    for launch, plan in zip(manifest["launches"], plans, strict=True):
        if files[launch["plan"]] != plan.words.astype("<i4").tobytes():
            raise LaunchRefused(f"{launch['plan']} is not the plan that is proven for {gpu.name}: tune it there")
    cubin = files[kernel["cubin"]]
    ties = Ties(
        workload=workload.digest,
        proofs=tuple(plan.digest for plan in plans),
        build=kernel["build"],
        cubin=cubin_digest(cubin),
    )
    smem_bytes = dynamic_smem_bytes(workload, schedule.tiling)
    launchable = Launchable(plans=plans, cubin=cubin, smem_bytes=smem_bytes, ties=ties)
    return Work(plan_kind=kind, launchable=launchable)


def try_one(supervisor: GpuSupervisor, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Numbers and times of one artifact: a ``reason`` where they are wrong or it does not run."""
    problem = problem_of(json.loads(files["manifest.json"]))
    try:
        work = work_of(files, supervisor.target.gpu)
        works = (Work(plan_kind=LIBRARY.plan_kind), work)
        answer = supervisor.time_together(problem, works, NUM_ROUNDS)
    except (LaunchRefused, IllegalSchedule, PlanError, ChildLost) as error:
        return {"reason": str(error)}
    library_us, ours_us = answer.times_us
    if library_us is None or ours_us is None:
        return {"reason": " ".join(reason for reason in answer.reasons if reason)}
    speedup = median(paired_ratios(library_us, ours_us))
    return {"reason": "", "time_us": median(ours_us), "library_us": median(library_us), "speedup": speedup}


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of one artifact."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def main() -> None:
    """Tries all on the first card that can be used."""
    try:
        card = usable_gpus()[0]
        with tempfile.TemporaryDirectory() as cache:
            supervisor = GpuSupervisor(card, Path(cache))
            try:
                for folder in sorted(Path(sys.argv[1]).iterdir()):
                    found = try_one(supervisor, read_folder(folder))
                    print(json.dumps({"kernel": folder.name, "gpu": card.name, **found}), flush=True)
            finally:
                supervisor.close()
    except WorkerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
