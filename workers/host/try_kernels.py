"""Runs fetched kernels on this machine's card: checks their results, and measures their gain over the library here.

python -m tuner.workers.host.try_kernels FOLDER

Each folder in FOLDER has the files of one artifact. For each, prints a line of JSON, in the order of names. The plans
are proven again, and must equal the artifact's; the cubin is the artifact's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.plan.op_launches import OpLaunch
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.own_plans import launches_for, own_digest
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import LIBRARY, Candidate, launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import IllegalSchedule, PlanError, WorkerError

from ..protocol.messages import Work
from ..source.launchable import Launchable, LaunchRefused, Ties, cubin_digest
from ..source.own_launchable import OwnLaunchable
from .cards import usable_gpus
from .gpu_process import ChildLost
from .supervisor import GpuSupervisor

#: Rounds in which a kernel and the library alternate.
NUM_ROUNDS = 20


def problem_of(manifest: Mapping[str, Any]) -> Problem:
    """The problem that the kernel was tuned for."""
    objective = manifest["objective"]
    return Problem(
        workload=Workload.from_json(manifest["workload"]),
        objective=Objective(l2=CacheState(objective["l2"]), regime=Regime(objective["regime"])),
    )


def work_of(files: Mapping[str, bytes], gpu: Gpu) -> Work:
    """The work for a card: the artifact's cubins with plans that are proven for that card.

    Raises:
        LaunchRefused: it has no cubin, is for another architecture, or its plan differs from the one proven here.
        IllegalSchedule, PlanError: the schedule is not for that card.
    """
    manifest = json.loads(files["manifest.json"])
    kind, workload = PlanKind(manifest["plan_kind"]), Workload.from_json(manifest["workload"])
    candidate = Candidate(plan_kind=kind, schedule=Schedule.from_json(manifest["schedule"]))
    workload, candidate = launched(workload, candidate)
    own = _own(manifest, files, gpu, workload, candidate)
    shared = [_shared(manifest, files, gpu, workload, candidate)] if manifest["kernel"] else []
    in_order = in_launch_order(workload, ((one.plans[0].graph.op_indices, one) for one in shared), own)
    return Work(plan_kind=kind, launchables=tuple(one for _, one in in_order))


def _shared(
    manifest: Mapping[str, Any], files: Mapping[str, bytes], gpu: Gpu, workload: Workload, candidate: Candidate
) -> Launchable:
    assert candidate.schedule is not None
    cubin, plans = _cubin(manifest["kernel"], files, gpu), _plans(manifest, files, gpu, workload, candidate)
    ties = _ties(manifest["kernel"], workload, tuple(plan.digest for plan in plans), cubin)
    smem_bytes = dynamic_smem_bytes(workload, candidate.schedule.tiling)
    return Launchable(plans=plans, cubin=cubin, smem_bytes=smem_bytes, ties=ties)


def _plans(
    manifest: Mapping[str, Any], files: Mapping[str, bytes], gpu: Gpu, workload: Workload, candidate: Candidate
) -> tuple[VerifiedPlan, ...]:
    """The plans of the launches, or of their replacements on a card with fewer clusters, whichever fit this card."""
    lists = [manifest[name] for name in ("launches", "fallback_launches") if name in manifest]
    for card in _cards(lists[0], gpu):
        plans = plans_for(workload, card, candidate)
        words = [plan.words.astype("<i4").tobytes() for plan in plans]
        if any([files[launch["plan"]] for launch in launches] == words for launches in lists):
            return plans
    raise LaunchRefused(f"{lists[0][0]['plan']} is not the plan that is proven for {gpu.name}: tune it there")


def _cards(launches: Sequence[Mapping[str, Any]], gpu: Gpu) -> Iterator[Gpu]:
    """Cards for which the plans may have been made: this card, all of its model, and if launches may run in waves, one
    that holds as many clusters as they need."""
    yield gpu
    yield gpu.as_any_card
    if not any(launch["needs_all_ctas"] for launch in launches):
        size = launches[0]["cluster"][0]
        yield replace(gpu, live_clusters=((size, max(launch["grid"][0] for launch in launches) // size),))


def _own(
    manifest: Mapping[str, Any], files: Mapping[str, bytes], gpu: Gpu, workload: Workload, candidate: Candidate
) -> tuple[OwnLaunchable, ...]:
    assert candidate.schedule is not None
    plans, found = own_plans_for(workload, gpu, candidate), []
    for index, (op, plan) in enumerate(zip(workload.launch_ops, plans, strict=True)):
        schedule, recipes = candidate.schedule.launch_ops[index], _recipes_of(manifest, op.name)
        cubin, proof = _cubin(recipes[0]["kernel"], files, gpu), own_digest(workload, op, schedule, plan)
        launches = launches_for(workload, op, schedule, plan).launches
        for recipe, launch in zip(recipes, launches, strict=True):
            _check_tables(recipe, launch, files, gpu)
        if recipes[0]["proof"] != proof:
            raise LaunchRefused(
                f"the launches of {op.name} are not those that are proven for {gpu.name}: tune it there"
            )
        ties = _ties(recipes[0]["kernel"], workload, (proof,), cubin)
        one = OwnLaunchable(workload=workload, index=index, schedule=schedule, plan=plan, cubin=cubin, ties=ties)
        found.append(one)
    return tuple(found)


def _recipes_of(manifest: Mapping[str, Any], op: str) -> list[Mapping[str, Any]]:
    """The recipes of a launch op's launches, in whichever list its kind has them."""
    lists = (found for found in manifest.values() if isinstance(found, list))
    recipes = (one for found in lists for one in found if isinstance(one, dict) and "kernel" in one)
    found: list[Mapping[str, Any]] = [one for one in recipes if one.get("op") == op]
    if not found:
        raise LaunchRefused(f"it has no launch of {op}: fetch it again")
    return found


def _check_tables(recipe: Mapping[str, Any], launch: OpLaunch, files: Mapping[str, bytes], gpu: Gpu) -> None:
    names = {field["name"]: field.get("file", recipe.get(field["name"])) for field in recipe["parameter"]["fields"]}
    for field in launch.fields:
        if field.table is not None:
            _check_same(names[field.name], field.table, files, gpu)


def _cubin(kernel: Mapping[str, Any], files: Mapping[str, bytes], gpu: Gpu) -> bytes:
    if kernel["cubin"] is None:
        raise LaunchRefused("the kernel comes from a simulated GPU and has no cubin")
    if kernel["arch"] != gpu.arch:
        raise LaunchRefused(f"the kernel was built for {kernel['arch']}, but this card is {gpu.arch}")
    return files[kernel["cubin"]]


def _check_same(name: str, proven: bytes, files: Mapping[str, bytes], gpu: Gpu) -> None:
    if files[name] != proven:
        raise LaunchRefused(f"{name} is not the plan that is proven for {gpu.name}: tune it there")


def _ties(kernel: Mapping[str, Any], workload: Workload, proofs: tuple[str, ...], cubin: bytes) -> Ties:
    return Ties(workload=workload.digest, proofs=proofs, build=kernel["build"], cubin=cubin_digest(cubin))


def try_one(supervisor: GpuSupervisor, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Results and times of one artifact, or a ``reason`` if they are wrong or it does not run."""
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
    """Tries all kernels on the first usable card."""
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
