"""The manifest is a full launch recipe, and marks simulated figures."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.support.cases import wgmma
from tests.support.forged import tied
from tests.unit.frozen.artifacts import artifact_path, read_zip
from tuner.core.plan.table.header import HEADER_WORDS
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Epilogue, Tile, Tiling
from tuner.core.trial.evaluator import ArtifactFiles, Environment, Problem
from tuner.core.trial.job import Objective
from tuner.errors import WorkerError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.versions import install_command
from tuner.workers.builder.artifact import assemble
from tuner.workers.host.cards import usable_gpus
from tuner.workers.source.launch_args import OpBuffers, pack_args
from tuner.workers.source.render import render

WORKLOAD = ffn_pair(m=48, d_in=64, d_hidden=128, d_out=96, activation=Activation.RELU, bias=True)
POINTERS = ("a", "w", "bias", "c", "residual", "row_scale")
REAL = Environment(gpu_name="NVIDIA H200", simulated=False, driver="580.1", cuda="13.0")
SIMULATED = Environment(gpu_name="simulated NVIDIA H200", simulated=True)


TILING = Tiling(tiles=(Tile(m=16, n=32, k=32),) * 2, num_stages=3, num_warps=4)


def artifact(
    kind: PlanKind,
    assignment: Assignment,
    environment: Environment,
    workload: Workload = WORKLOAD,
    tiling: Tiling = TILING,
) -> ArtifactFiles:
    schedule = Schedule.of(
        tiling=tiling,
        ordering=Ordering(rasters=(Raster(), Raster()), assignment=assignment),
    )
    candidate = Candidate(plan_kind=kind, schedule=schedule)
    plans = plans_for(workload, CATALOGUE["h200"], candidate)
    built = None if environment.simulated else tied(plans, b"\x7fELF")
    asked = Problem(workload=workload, objective=Objective())
    source, extra = render(workload, schedule.tiling), {"job_id": "job-1"}
    return assemble(asked, candidate, plans, source, built, environment, extra, spin_limit_cycles=55)


@pytest.mark.parametrize("epilogue", Epilogue)
def test_every_tensor_map_of_the_parameter_is_reported_with_its_tensor(epilogue: Epilogue) -> None:
    manifest = artifact(PlanKind.FUSED, Assignment.STATIC, REAL, tiling=wgmma((16, 64, 64), epilogue=epilogue)).manifest
    names = [field["name"] for field in manifest["parameter"]["fields"] if field["name"].endswith("_map")]
    tensors = {recipe["name"]: recipe["tensor"] for recipe in manifest["launches"][0]["tensor_maps"]}
    assert list(tensors) == names
    stored = {"up.c_map": "up", "down.c_map": "down"} if epilogue is Epilogue.TMA else {}
    read = {"up.a_map": "x", "down.a_map": "up", "up.w_map": "up.w", "down.w_map": "down.w"}
    assert tensors == read | stored
    shapes = {tensor["name"]: tensor["shape"] for tensor in manifest["tensors"]}
    for recipe in manifest["launches"][0]["tensor_maps"]:
        if recipe["name"] in stored:
            assert list(recipe["dims"]) == shapes[recipe["tensor"]][::-1]


def test_every_file_is_named_with_its_digest_and_the_manifest_reads_back() -> None:
    made = artifact(PlanKind.FUSED, Assignment.TICKET, REAL)
    manifest = json.loads(made.files["manifest.json"])
    assert manifest == json.loads(json.dumps(made.manifest))
    assert set(made.files) == {"manifest.json", "kernel.cu", "kernel.cubin", "plan0.bin"}
    for name, facts in manifest["files"].items():
        assert facts == {"sha256": hashlib.sha256(made.files[name]).hexdigest(), "size_bytes": len(made.files[name])}
    assert manifest["job_id"] == "job-1"
    assert manifest["kernel"]["least_driver"].startswith("580")
    assert (manifest["kernel"]["arch"], manifest["kernel"]["arch_suffix"]) == ("sm_90a", "a")


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)])
def test_a_launch_tells_grid_block_memory_and_its_plan(kind: PlanKind) -> None:
    made = artifact(kind, Assignment.STATIC, REAL)
    assert len(made.manifest["launches"]) == (1 if kind.is_fused else 2)
    for launch in made.manifest["launches"]:
        plan = Plan.from_words(np.frombuffer(made.files[launch["plan"]], dtype="<i4"))
        assert launch["grid"] == [plan.num_ctas, 1, 1]
        assert launch["block"] == [128, 1, 1]
        assert launch["dynamic_smem_bytes"] == 3 * (16 + 32) * 32 * 2
        assert launch["workspace"]["bytes"] >= 256 + 4 * plan.num_signals
        assert launch["workspace"]["bytes"] % 16 == 0
        assert (launch["cluster"], launch["programmatic_dependent_launch"], launch["tensor_maps"]) == (
            [1, 1, 1],
            kind.is_programmatic,
            [],
        )


def test_a_launch_is_cooperative_where_its_plan_needs_co_residency() -> None:
    many = ffn_pair(m=160, d_in=32, d_hidden=512, d_out=512)  # more tiles than CTAs

    def cooperative(kind: PlanKind, assignment: Assignment) -> list[bool]:
        return [launch["cooperative"] for launch in artifact(kind, assignment, REAL, many).manifest["launches"]]

    assert cooperative(PlanKind.FUSED, Assignment.STATIC) == [True]
    assert cooperative(PlanKind.FUSED, Assignment.TICKET) == [False]
    assert cooperative(PlanKind.FUSED, Assignment.FIRST_WAVE) == [True]
    assert cooperative(PlanKind.FUSED_PDL, Assignment.STATIC) == [False]
    assert cooperative(PlanKind.TWO_STREAMS, Assignment.STATIC) == [False, False]
    assert cooperative(PlanKind.TWO_LAUNCHES, Assignment.STATIC) == [False, False]


def test_two_streams_share_a_workspace_and_a_start_gate_is_launched_before_the_second() -> None:
    made = artifact(PlanKind.TWO_STREAMS, Assignment.STATIC, REAL)
    first, second = made.manifest["launches"]
    assert (first["stream"], second["stream"], first["start_gate"]) == (0, 1, None)
    assert [launch["workspace"]["index"] for launch in (first, second)] == [0, 0]
    assert [launch["workspace"]["is_second"] for launch in (first, second)] == [False, True]
    assert first["workspace"]["bytes"] == second["workspace"]["bytes"]
    assert second["start_gate"]["num_ctas"] == first["grid"][0]
    assert f"{second['start_gate']['kernel']}(Workspace* workspace, int num_ctas" in made.files["kernel.cu"].decode()
    apart = independent_pair((32, 64, 32), (64, 32, 32))
    assert artifact(PlanKind.TWO_STREAMS, Assignment.STATIC, REAL, apart).manifest["launches"][1]["start_gate"] is None
    for launch in artifact(PlanKind.TWO_LAUNCHES, Assignment.STATIC, REAL).manifest["launches"]:
        assert (launch["stream"], launch["start_gate"]) == (0, None)


def test_the_manifest_says_what_a_frozen_one_of_format_1_says() -> None:
    """Except for the name of the start gate: a reader of that name and of all fields of format 1 can read today's."""
    frozen = json.loads(read_zip(artifact_path(1).read_bytes())["manifest.json"])
    assert (frozen["format"], frozen["launches"][1]["gate"]["kernel"]) == (1, "tuner_gate")
    today = json.loads(artifact(PlanKind.TWO_STREAMS, Assignment.STATIC, REAL).files["manifest.json"])
    for launch in today["launches"]:
        launch["gate"] = launch.pop("start_gate")
    assert missing_in(today, frozen) == []


def missing_in(today: Any, frozen: Any, path: str = "") -> list[str]:
    """The fields of a frozen document that are missing today, or have values of a different type."""
    if isinstance(frozen, dict):
        gone = [f"{path}.{key}" for key in frozen if key not in today]
        return gone + [
            name for key in frozen.keys() & today for name in missing_in(today[key], frozen[key], f"{path}.{key}")
        ]
    if isinstance(frozen, list) and len(frozen) == len(today):
        pairs = enumerate(zip(today, frozen, strict=True))
        return [name for i, (new, old) in pairs for name in missing_in(new, old, f"{path}[{i}]")]
    return [] if type(today) is type(frozen) else [path]


def test_the_parameters_fields_fill_the_struct_without_overlap() -> None:
    layout = artifact(PlanKind.FUSED, Assignment.TICKET, REAL).manifest["parameter"]
    sizes = {"pointer": 8, "int64": 8, "int32": 4, "int32[16]": 4 * HEADER_WORDS}
    end = 0
    for field in layout["fields"]:
        assert field["offset"] >= end
        assert field["offset"] % min(8, sizes[field["type"]]) == 0
        end = field["offset"] + sizes[field["type"]]
    assert layout["size_bytes"] - end < 16
    assert layout["size_bytes"] == 104 + 2 * 64


def test_the_manifests_offsets_find_every_field_of_a_packed_launch() -> None:
    made = artifact(PlanKind.FUSED, Assignment.TICKET, REAL)
    schedule = Schedule.from_json(made.manifest["schedule"])
    (plan,) = plans_for(WORKLOAD, CATALOGUE["h200"], Candidate(plan_kind=PlanKind.FUSED, schedule=schedule))
    buffers = tuple(
        OpBuffers(**{pointer: 10 * i + j for j, pointer in enumerate(POINTERS)}, m=op.m, n=op.n, k=op.k)
        for i, op in enumerate(WORKLOAD.tile_ops)
    )
    packed = pack_args(77, 88, 99, plan, buffers, is_dependent=True, is_second=True)
    layout = made.manifest["parameter"]
    assert (len(packed), layout["spin_limit_cycles"]) == (layout["size_bytes"], 55)
    formats = {"pointer": "<Q", "int64": "<q", "int32": "<i"}
    found = {
        field["name"]: struct.unpack_from(formats[field["type"]], packed, field["offset"])[0]
        for field in layout["fields"]
        if field["type"] in formats
    }
    assert (found["words"], found["workspace"], found["spin_limit_cycles"]) == (77, 88, 99)
    assert (found["is_dependent"], found["is_second"]) == (1, 1)
    members = (*POINTERS, "m", "n", "k")
    assert [found[f"up.{member}"] for member in members] == [0, 1, 2, 3, 4, 5, 48, 128, 64]
    assert [found[f"down.{member}"] for member in members] == [10, 11, 12, 13, 14, 15, 48, 96, 128]
    header = next(field["offset"] for field in layout["fields"] if field["name"] == "plan_header")
    assert packed[header : header + 64] == made.files["plan0.bin"][:64]


def test_tensors_tell_every_operand_once() -> None:
    tensors = {
        t["name"]: (t["role"], t["shape"])
        for t in artifact(PlanKind.FUSED, Assignment.TICKET, REAL).manifest["tensors"]
    }
    assert tensors == {
        "x": ("input", [48, 64]),
        "up.w": ("weight", [128, 64]),
        "up.bias": ("bias", [128]),
        "up": ("intermediate", [48, 128]),
        "down.w": ("weight", [96, 128]),
        "down.bias": ("bias", [96]),
        "down": ("output", [48, 96]),
    }


def test_a_gated_launch_lists_its_operands_and_where_they_go() -> None:
    options = dict.fromkeys(("bias", "gated", "residual", "row_scale"), True)
    workload = ffn_pair(m=48, d_in=64, d_hidden=128, d_out=96, activation=Activation.SILU, **options)
    manifest = artifact(PlanKind.FUSED, Assignment.TICKET, REAL, workload).manifest
    tensors = {t["name"]: (t["role"], t["shape"], t["dtype"]) for t in manifest["tensors"]}
    assert tensors["up.w"] == ("weight", [256, 64], "fp16")
    assert tensors["up.bias"] == ("bias", [256], "fp16")
    assert tensors["up.row_scale"] == ("row_scale", [48], "fp32")
    assert tensors["up"] == ("intermediate", [48, 128], "fp16")
    assert tensors["down.residual"] == ("residual", [48, 96], "fp16")
    fields = {field["name"]: field for field in manifest["parameter"]["fields"]}
    assert fields["up.w"]["meaning"] == "weight [2n, k]"
    assert fields["down.w"]["meaning"] == "weight [n, k]"
    assert {f"{op}.{part}" for op in ("up", "down") for part in ("residual", "row_scale")} <= fields.keys()
    assert manifest["launches"][0]["dynamic_smem_bytes"] == 3 * (16 + 2 * 32) * 32 * 2


def test_a_simulated_artifact_says_so_and_has_no_cubin() -> None:
    made = artifact(PlanKind.FUSED, Assignment.TICKET, SIMULATED)
    assert made.manifest["simulated"] is True
    assert made.manifest["kernel"]["cubin"] is None
    assert set(made.files) == {"manifest.json", "kernel.cu", "plan0.bin"}


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed here")
def test_a_machine_without_the_workers_packages_is_said_what_to_install() -> None:
    with pytest.raises(WorkerError, match=f"cupy not installed: {re.escape(install_command('worker-cuda13'))}"):
        usable_gpus()
