"""The files of a kernel for a pipeline: source, cubin, plans, and a manifest with the complete launch recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.joined import computed_by
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import fallback_for
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.trial.evaluator import ArtifactFiles, Environment, Problem
from tuner.versions import CACHES_FORMAT, MANIFEST_FORMAT, ORDERED_FORMAT, PAGES_FORMAT, PRODUCTS_FORMAT

from ..source.launch_args import first_tasks, needs_co_residency, parameter_layout, workspace_layout
from ..source.launchable import Launchable, LaunchRefused
from ..source.own_source import own_source
from ..source.render import KERNEL_NAME, START_GATE_NAME, render
from ..source.tensor_maps import tensor_maps
from ..source.variants import Variant, variants_of
from .facts import (
    INTERMEDIATES,
    aliasing,
    launch_facts,
    legal_rows,
    numbers,
    refused_facts,
    workspace_facts,
)
from .listed import tensors_of, tensors_of_joined
from .nvrtc import compile_options
from .own_artifact import OwnArtifact, OwnKernels
from .variants import VariantBuild

#: The oldest driver branch that loads cubins of a CUDA major version. Source: CUDA Toolkit release notes, minor version
#: compatibility.
_LEAST_DRIVER = {"12": "525.60.13", "13": "580.65.06"}
#: Maximum parameter bytes with any driver, and with drivers from that branch on. Five ops with their tensor maps need
#: more than the former. Source: CUDA Toolkit 12.1 release notes, kernel parameters.
_SMALL_PARAMETER_BYTES, _LARGE_PARAMETER_DRIVER = 4096, "530.30.02"

Json = dict[str, Any]
#: Files of plans: of launches, and of their replacements on a card that holds fewer clusters.
_PLANS = {"launches": "plan{}.bin", "fallback_launches": "fallback_plan{}.bin"}

_CONCURRENCY = (
    "One launch at a time per workspace. A cooperative launch needs all its CTAs resident: on one GPU, run only one "
    "such kernel at a time, apart from its own chain. The same holds for a programmatic launch whose plan has static "
    "queues and signals; work before it in the stream must end without waiting for it. A launch on stream 1 starts "
    "after the work before the run, and work after the run starts after all of its launches."
)


def assemble(
    problem: Problem,
    candidate: Candidate,
    plans: tuple[VerifiedPlan, ...],
    source: str,
    launchable: Launchable | None,
    environment: Environment,
    extra: dict[str, Any],
    spin_limit_cycles: int,
    variants: tuple[VariantBuild, ...] = (),
    own: Sequence[OwnArtifact] = (),
) -> ArtifactFiles:
    """Source, plans and cubin (none if simulated) with their manifest; `extra` is added to the manifest, and
    `spin_limit_cycles` is the maximum duration of a wait. `variants` are the kernel's other builds. Without a product
    there are no plans and no source except those of `own`, one for each launch op.

    Raises:
        ValueError: the candidate has no schedule.
        LaunchRefused: plans, source and cubin do not belong to one kernel of the problem's workload.
    """
    schedule = candidate.schedule
    if schedule is None:
        raise ValueError("a candidate without a schedule has no kernel to fetch")
    asked, kind = problem.workload, candidate.plan_kind
    workload, candidate = launched(asked, candidate)
    _check_own(workload, schedule, own)
    if workload.tile_ops:
        _check_tied(workload, schedule, plans, source, launchable)
    cubin = launchable.cubin if launchable else None
    files = {"kernel.cu": source.encode()} if workload.tile_ops else {}
    for one in own:
        files |= one.files
    fallback = fallback_for(candidate, plans)
    lists = {"launches": plans, **({"fallback_launches": fallback} if fallback else {})}
    for name, proven in lists.items():
        files |= {_PLANS[name].format(i): plan.words.astype("<i4").tobytes() for i, plan in enumerate(proven)}
    if cubin is not None:
        files["kernel.cubin"] = cubin
    files |= {cubin_name(one.variant): one.launchable.cubin for one in variants if one.launchable}
    programmatic = candidate.plan_kind.is_programmatic
    recipes = _own_recipes(own, environment, programmatic)
    manifest: dict[str, Any] = {
        "format": _format(workload, own),
        "simulated": environment.simulated,
        "plan_kind": str(kind),
        "workload": asked.to_json(),
        "workload_digest": asked.digest,
        "schedule": schedule.to_json(),
        "schedule_digest": schedule.digest,
        "schedule_in_words": str(schedule),
        "objective": asdict(problem.objective),
        "environment": asdict(environment),
        **_products(workload, schedule, plans, launchable, environment, spin_limit_cycles, programmatic, variants),
        **_by_section(own, recipes),
        "rows": legal_rows(workload, asked),
        "numbers": numbers(workload, plans, schedule, fallback),
        "aliasing": aliasing(workload),
        "intermediates": INTERMEDIATES,
        "tensors": tensors_of_joined(asked, workload) if kind.is_joined else tensors_of(workload, schedule.tiling, own),
        **({"joined": _joined(asked)} if kind.is_joined else {}),
        **{
            name: [_launch(i, proven, workload, candidate, _PLANS[name]) for i in range(len(proven))]
            for name, proven in lists.items()
        },
        **({"launch_order": _launch_order(workload, plans, own, recipes)} if _is_ordered(workload, own) else {}),
        "concurrency": _CONCURRENCY,
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for name, data in files.items()
        },
        **extra,
    }
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    return ArtifactFiles(files={**files, "manifest.json": text.encode()}, manifest=manifest)


def _joined(asked: Workload) -> dict[str, list[str]]:
    """The ops that compute several of those that were asked for, and these."""
    return {name: list(names) for name, names in computed_by(asked).items() if len(names) > 1}


def _format(workload: Workload, own: Sequence[OwnArtifact]) -> int:
    """The oldest manifest format whose readers run the artifact correctly."""
    if any(isinstance(one, OwnKernels) for one in own):
        return MANIFEST_FORMAT
    caches = (op.written_cache for op in workload.tile_ops)
    if any(cache and cache.page_tokens is not None for cache in caches):
        return PAGES_FORMAT
    if workload.borders:
        return ORDERED_FORMAT
    return CACHES_FORMAT if workload.launch_ops or workload.cache_op is not None else PRODUCTS_FORMAT


def _is_ordered(workload: Workload, own: Sequence[OwnArtifact]) -> bool:
    """Whether the manifest says in which order its lists of launches run."""
    return bool(workload.borders) or any(isinstance(one, OwnKernels) for one in own)


def _launch_order(
    workload: Workload,
    plans: tuple[VerifiedPlan, ...],
    own: Sequence[OwnArtifact],
    recipes: Sequence[Sequence[Json]],
) -> list[dict[str, Any]]:
    """For each launch: its list, and its position in the list."""
    shared = ((plan.graph.op_indices, [{"list": "launches", "index": index}]) for index, plan in enumerate(plans))
    counts, places = dict.fromkeys((one.section for one in own), 0), []
    for one, of_it in zip(own, recipes, strict=True):
        first = counts[one.section]
        places.append([{"list": one.section, "index": first + number} for number in range(len(of_it))])
        counts[one.section] += len(of_it)
    return [launch for _, launches in in_launch_order(workload, shared, places) for launch in launches]


def _products(
    workload: Workload,
    schedule: Schedule,
    plans: tuple[VerifiedPlan, ...],
    launchable: Launchable | None,
    environment: Environment,
    spin_limit_cycles: int,
    programmatic: bool,
    variants: tuple[VariantBuild, ...],
) -> dict[str, Any]:
    """Kernel and parameter of the products; null if there are none."""
    if not workload.tile_ops:
        return {"kernel": None, "parameter": None}
    parameter = parameter_layout(workload, schedule.tiling, spin_limit_cycles)
    offered = [_variant(one, variants) for one in variants_of(plans, programmatic=programmatic)]
    build = launchable.ties.build if launchable else None
    facts = _kernel("kernel", KERNEL_NAME, plans[0].gpu, build, environment, parameter["size_bytes"])
    return {"kernel": facts | {"variants": offered}, "parameter": parameter}


def _check_own(workload: Workload, schedule: Schedule, own: Sequence[OwnArtifact]) -> None:
    if tuple((one.workload, one.schedule) for one in own) != tuple((workload, one) for one in schedule.launch_ops):
        raise LaunchRefused(f"the launch ops do not belong to {workload.describe()} with {schedule}")
    for one in own:
        op = workload.launch_ops[one.index]
        if one.source != own_source(op, one.schedule, workload.dtype):
            raise LaunchRefused(f"the source of {op.name} does not belong to its schedule: render it again")
        if one.launchable is not None:
            one.launchable.check()


def _own_recipes(
    own: Sequence[OwnArtifact], environment: Environment, programmatic: bool
) -> list[list[dict[str, Any]]]:
    """The recipes of each launch op's launches, in order."""
    found = []
    for one in own:

        def compiled(file: str, name: str, build: str | None, parameter_bytes: int, gpu: Gpu = one.gpu) -> Any:
            return _kernel(file, name, gpu, build, environment, parameter_bytes)

        found.append(one.recipes(compiled, programmatic=programmatic))
    return found


def _by_section(own: Sequence[OwnArtifact], recipes: Sequence[Sequence[Json]]) -> dict[str, list[Json]]:
    """The manifest's lists of recipes."""
    found: dict[str, list[Json]] = {}
    for one, of_it in zip(own, recipes, strict=True):
        found.setdefault(one.section, []).extend(of_it)
    return found


def _check_tied(
    workload: Workload,
    schedule: Schedule,
    plans: tuple[VerifiedPlan, ...],
    source: str,
    launchable: Launchable | None,
) -> None:
    if any(plan.graph.workload != workload or plan.graph.tiling != schedule.tiling for plan in plans):
        raise LaunchRefused(f"the plans do not belong to {workload.describe()} in tiles of {schedule.tiling}")
    if source != render(workload, schedule.tiling):
        raise LaunchRefused("the source does not belong to the workload and the tiling: render it again")
    if launchable is None:
        return
    launchable.check()
    if launchable.ties.proofs != tuple(plan.digest for plan in plans):
        raise LaunchRefused("the cubin is tied to different plans: tie them again")


def least_driver(cuda: str, parameter_bytes: int) -> str:
    """The oldest driver that loads a cubin of this CUDA version and accepts a parameter of this size; empty if
    unknown."""
    least = _LEAST_DRIVER.get(cuda.split(".")[0], "")
    if not least or parameter_bytes <= _SMALL_PARAMETER_BYTES:
        return least
    return max(least, _LARGE_PARAMETER_DRIVER)


def cubin_name(variant: Variant) -> str:
    """The file of a variant's cubin in an artifact."""
    return "kernel.cubin" if variant is Variant.MEASURED else f"{variant}.cubin"


def _variant(variant: Variant, builds: tuple[VariantBuild, ...]) -> dict[str, Any]:
    """A variant of the kernel, or why there is none."""
    build = next((build for build in builds if build.variant is variant), None)
    if build is None or build.launchable is None:
        reason = build.refusal if build else "nothing was compiled"
        return {"name": str(variant), "cubin": None, "build": None, "reason": reason}
    return {"name": str(variant), "cubin": cubin_name(variant), "build": build.launchable.ties.build, "reason": ""}


def _kernel(
    file: str, name: str, gpu: Gpu, build: str | None, environment: Environment, parameter_bytes: int
) -> dict[str, Any]:
    """How a kernel was compiled; `file` is the name of its files without extensions."""
    arch = gpu.arch
    return {
        "name": name,
        "source": f"{file}.cu",
        "cubin": f"{file}.cubin" if build else None,
        "build": build,
        "arch": arch,
        "arch_suffix": arch[-1] if arch[-1].isalpha() else "",
        "num_sms": gpu.num_sms,
        "compiler": {
            "name": "nvrtc",
            "version": environment.cuda,
            "options": [f"--gpu-architecture={arch}", *compile_options(environment.cuda or "0")],
        },
        "least_driver": least_driver(environment.cuda, parameter_bytes),
    }


def _launch(
    index: int, plans: tuple[VerifiedPlan, ...], workload: Workload, candidate: Candidate, file: str
) -> dict[str, Any]:
    plan, schedule, programmatic = plans[index], candidate.schedule, candidate.plan_kind.is_programmatic
    assert schedule is not None
    return {
        "ops": [workload.tile_ops[op].name for op in plan.graph.op_indices],
        "plan": file.format(index),
        "proof": plan.digest,
        "grid": [plan.plan.num_ctas * schedule.tiling.cluster_size, 1, 1],
        "block": [schedule.tiling.num_threads, 1, 1],
        "cluster": [schedule.tiling.cluster_size, 1, 1],
        "cooperative": needs_co_residency(plan) and not programmatic,
        "programmatic_dependent_launch": programmatic,
        "dynamic_smem_bytes": dynamic_smem_bytes(workload, schedule.tiling),
        **launch_facts(plan, candidate.plan_kind),
        "tensor_maps": _tensor_maps(workload, schedule.tiling),
        "first_tasks": first_tasks(plan).hex() if schedule.tiling.engine is Engine.WGMMA else "",
        "stream": index if plan.is_paired else 0,
        "start_gate": _start_gate(plans[0]) if plan.is_paired and index == 1 else None,
        "workspace": {
            "index": 0 if plan.is_paired else index,
            "is_second": plan.is_paired and index == 1,
            **workspace_layout(plan),
            **workspace_facts(workspace_layout(plan)),
            "per": "stream and plan; the launches of one run that name the same index share it",
            "zero": "once, when it is allocated, and again after an abort; the bytes from slots on need not be",
            "counters": "epoch: they only grow, no launch resets them",
            "abort_record": {"offset": 128, "fields": ["raised", "task", "signal", "seen", "expected", "cta"]},
            **refused_facts(workload, plan.graph.op_indices),
        },
    }


def _tensor_maps(workload: Workload, tiling: Tiling) -> list[dict[str, Any]]:
    """Arguments of cuTensorMapEncodeTiled for each map of the parameter; those with corners are for
    cuTensorMapEncodeIm2col.
    """
    if tiling.engine is not Engine.WGMMA:
        return []
    return [
        {
            "name": f"{workload.tile_ops[m.op].name}.{m.operand}_map",
            "tensor": workload.tile_ops[m.op].tensor_of(m.operand),
            "data_type": workload.dtype.row.map_type.name,
            **m.manifest,
            "interleave": "CU_TENSOR_MAP_INTERLEAVE_NONE",
            "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B",
            "l2_promotion": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
            "oob_fill": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
        }
        for m in tensor_maps(workload, tiling)
    ]


def _start_gate(first: VerifiedPlan) -> dict[str, Any] | None:
    """The kernel before the second of two launches on two streams; None if it waits for nothing."""
    if first.plan.num_signals == 0:
        return None
    return {
        "kernel": START_GATE_NAME,
        "grid": [1, 1, 1],
        "block": [1, 1, 1],
        "num_ctas": first.plan.num_ctas * first.graph.tiling.cluster_size,
        "parameters": ["pointer: the workspace", "int32: num_ctas", "int64: spin_limit_cycles"],
        "meaning": "on the launch's stream, before it: ends when all CTAs of the first launch have started",
    }
