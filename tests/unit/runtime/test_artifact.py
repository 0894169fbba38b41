"""What the runtime hands to the driver for an artifact is what the worker's own launcher hands to it, byte for byte."""

from __future__ import annotations

import ctypes
import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attentions import alone, attention
from tests.support.cases import H200, wgmma
from tests.support.chains import block
from tests.support.native.recorder import Recorder
from tests.support.on_card import problem
from tests.support.packs import tied
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Ordering, Raster, Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import ArtifactFiles, Environment
from tuner.runtime import Artifact, RuntimeFailure, load_artifact
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.attention_artifact import attention_kernels
from tuner.workers.builder.nvrtc import Built, Resources
from tuner.workers.source.append import AppendBuffers, pack_append_args
from tuner.workers.source.attention import AttentionBuffers, cache_map, pack_attention_args
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.render import render
from tuner.workers.source.tensor_maps import tensor_maps

TILING = wgmma((16, 32, 64), (16, 32, 64), (16, 32, 64), (16, 32, 64))
ORDERING = Ordering(rasters=(Raster(),) * 4)
HERE = Environment(gpu_name="H200", simulated=False, cuda="13.0")
STREAM, PROGRAMMATIC = 0x77, (6, 1)


@dataclass(frozen=True)
class OnDevice:
    """An array that is never read: an address with a shape and a type."""

    address: int
    shape: tuple[int, ...]
    typestr: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": self.shape, "strides": None, "typestr": self.typestr}


def chain(kind: PlanKind, workload: Workload) -> tuple[ArtifactFiles, Any]:
    """An artifact of a chain that nothing compiled, and its plans."""
    ordering = replace(ORDERING, run_starts=(1, 3)) if kind.is_in_runs else ORDERING
    candidate = Candidate(plan_kind=kind, schedule=Schedule(tiling=TILING, ordering=ordering))
    plans = plans_for(workload, H200, candidate)
    cubin = tied(plans, b"\x7fELF measured")
    source = render(workload, TILING)
    return assemble(problem(workload), candidate, plans, source, cubin, HERE, {}, 55), plans


def attention_alone() -> tuple[ArtifactFiles, Any]:
    """An artifact of an attention with what goes in front, and the attention's kernel."""
    workload = attention(new_tokens=2)
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=alone(span_tokens=192, cluster=1))
    built = Built(key="k" * 64, cubin=b"\x7fELF append", resources=Resources.of_log(""), compiler="13.0")
    (kernel,) = attention_kernels(workload, H200, candidate, (), (built,))
    made = assemble(problem(workload), candidate, (), "", None, HERE, {}, 55, attentions=(kernel,))
    manifest = json.loads(made.files["manifest.json"])
    manifest["attentions"][0]["kernel"]["cubin"] = "attention0_append.cubin"  # any module: it is never run
    return ArtifactFiles(files={**made.files, "manifest.json": json.dumps(manifest).encode()}, manifest=manifest), kernel
