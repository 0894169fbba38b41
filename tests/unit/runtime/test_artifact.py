"""The runtime passes the same bytes to the driver for an artifact as the worker's own launcher."""

from __future__ import annotations

import ctypes
import json
import struct
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_parameter import AttentionBuffers, cache_bytes, pack_attention_args
from tests.support.attentions import alone, attention
from tests.support.between import between
from tests.support.between_made import artifact_of, candidate_of
from tests.support.cases import H200, wgmma
from tests.support.chains import block
from tests.support.forged import tied
from tests.support.lanes import one_in
from tests.support.native.recorder import Recorder
from tests.support.on_card import problem
from tests.support.parts import ColumnScale, Softcap
from tests.support.presets import Run, decoder_block
from tests.unit.runtime.encoded import encoded
from tuner.core.problem.epilogue import AddedPart
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import ArtifactFiles, Environment
from tuner.ops.attention.append import AppendBuffers, pack_append_args
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.source import cache_map
from tuner.ops.gemm.op import GemmOp
from tuner.runtime import Artifact, Attention, RuntimeFailure, load_artifact
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Built, Resources
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.parts import pointers_of
from tuner.workers.source.render import render
from tuner.workers.source.tensor_maps import tensor_maps

TILING = wgmma((16, 32, 64), (16, 32, 64), (16, 32, 64), (16, 32, 64))
ORDERING = Ordering(rasters=(Raster(),) * 4, assignment=Assignment.STATIC)
HERE = Environment(gpu_name="H200", simulated=False, cuda="13.0")
STREAM, PROGRAMMATIC, COOPERATIVE = 0x77, (6, 1), (2, 1)


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
    """An artifact of a chain without compiled kernels, and its plans."""
    num_ops = len(workload.tile_ops)
    tiling = replace(TILING, tiles=TILING.tiles[:num_ops])
    ordering = replace(ORDERING, rasters=ORDERING.rasters[:num_ops], run_starts=(1, 3) if kind.is_in_runs else ())
    candidate = Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering))
    plans = plans_for(workload, H200, candidate)
    cubin, source = tied(plans, b"\x7fELF measured"), render(workload, tiling)
    return assemble(problem(workload), candidate, plans, source, cubin, HERE, {}, 55), plans


def attention_alone(engine: AttentionEngine = AttentionEngine.TMA, **form: Any) -> tuple[ArtifactFiles, Any]:
    """An artifact of an attention with the kernel before it, and the attention's kernel; `form` is for `form_for`."""
    workload = attention(new_tokens=2, form=form)
    schedule = alone(span_tokens=192, cluster=1, engine=engine)
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=schedule)
    resources = Resources(registers_per_thread=40, static_smem_bytes=0, spill_bytes=0, stack_bytes=0, warnings=())
    built = Built(
        key="k" * 64, cubin=b"\x7fELF append", resources=resources, compiler="13.0", compile_s=0.1, cached=False
    )
    (kernel,) = own_kernels(workload, H200, candidate, (), lambda _: built)
    made = assemble(problem(workload), candidate, (), "", None, HERE, {}, 55, own=(kernel,))
    manifest = json.loads(made.files["manifest.json"])
    manifest["attentions"][0]["kernel"]["cubin"] = "attention0_append.cubin"  # any module, since it is never run
    return ArtifactFiles(
        files={**made.files, "manifest.json": json.dumps(manifest).encode()}, manifest=manifest
    ), kernel


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))


def tensors_of(artifact: Artifact, *roles: str) -> dict[str, OnDevice]:
    """One tensor for each required argument and each of `roles`, at distinct addresses."""
    types, left_out = (
        {"fp16": "<u2", "bf16": "<u2", "fp32": "<f4", "int32": "<i4"},
        {"intermediate", "squares", "optional"},
    )
    return {
        name: OnDevice(0x10000000 * (index + 1), tuple(tensor["shape"]), types[tensor["dtype"]])
        for index, (name, tensor) in enumerate(artifact.tensors.items())
        if tensor["role"] not in left_out - set(roles)
    }


def launched(recorder: Recorder, artifact: Artifact, given: dict[str, OnDevice], sizes: list[int]) -> list[Any]:
    """The driver calls that enqueue the artifact; `sizes` are those of the launches' parameters."""
    launches = artifact.bind(given)
    recorder.clear()
    for launch, size in zip(launches._launches, sizes, strict=True):
        recorder.cuda.fake_parameter_bytes(size)
        launch.enqueue(STREAM)
    return recorder.calls("cuLaunchKernelEx")


def buffers_of(
    artifact: Artifact, workload: Workload, given: dict[str, OnDevice], num_pages: int = 0
) -> tuple[OpBuffers, ...]:
    """The worker launcher's arguments for the same tensors."""

    def at(name: str) -> int:
        return given[name].address if name in given else artifact._memory.get(name, 0)

    def cache_of(op: GemmOp) -> dict[str, int]:
        if op.rotary is None:
            return {}
        return {name: at(f"{op.name}.{name}") for name in op.rotary.operands} | {"num_pages": num_pages}

    return tuple(
        OpBuffers(
            a=at(op.source),
            w=at(f"{op.name}.w"),
            bias=at(f"{op.name}.bias"),
            c=at(op.name),
            residual=at(op.residual_source or f"{op.name}.residual"),
            row_scale=at(f"{op.norm}.squares") if op.norm else at(f"{op.name}.row_scale"),
            squares=at(f"{op.name}.squares"),
            parts=cache_of(op) | {one.name: at(one.tensor) for one in pointers_of(op)},
            m=op.m,
            n=op.n,
            k=op.k,
        )
        for op in workload.tile_ops
    )


TURNED = Rotary(heads=4, kv_heads=1, head_dim=64, max_length=70)
#: The chain's rotated op, the parts of a package that another op has, and the format of its manifest.
EPILOGUES = [
    *((None, (), 2), (TURNED, (), 3)),
    (replace(TURNED, page_tokens=16, heads_first=False), (), 5),
    (TURNED, (ColumnScale(), Softcap(cap=30.0)), 3),
]


@pytest.mark.parametrize(
    ("rotary", "parts", "number"), one_in(4, EPILOGUES), ids=["", "turned", "to pages", "of a package"]
)
@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.RUNS, PlanKind.N_LAUNCHES_PDL], ids=str)
def test_launches_of_a_chain_have_the_workers_parameters(
    recorder: Recorder, kind: PlanKind, rotary: Rotary | None, parts: tuple[AddedPart, ...], number: int
) -> None:
    workload = block(16, dtype=Dtype.BF16, rotary=rotary)
    first, gated, *others = workload.tile_ops
    workload = replace(workload, ops=(first, replace(gated, epilogue=parts), *others))
    made, plans = chain(kind, workload)
    artifact = Artifact(made.files)
    assert made.manifest["format"] == number
    given, num_pages = tensors_of(artifact), 0
    if rotary and rotary.page_tokens:
        num_pages = 7 + given["qkv.keys"].shape[0]  # as in a serving program
        for name in ("qkv.keys", "qkv.values"):
            given[name] = replace(given[name], shape=(num_pages, *given[name].shape[1:]))
    size = made.manifest["parameter"]["size_bytes"]
    calls = launched(recorder, artifact, given, [size] * len(plans))
    ops, products = buffers_of(artifact, workload, given, num_pages), artifact._products
    assert products is not None
    expected = []
    for index, plan in enumerate(plans):
        args = pack_args(
            products._words[index], products._workspaces[index], 55, plan, ops, is_dependent=kind.is_programmatic
        )
        maps = (
            encoded(recorder, one, Dtype.BF16, getattr(ops[one.op], one.operand))
            for one in tensor_maps(workload, TILING)
        )
        expected.append(extend_args(args, first_tasks(plan), tuple(maps)))
    assert [call.parameter for call in calls] == expected
    grids = [
        (launch["grid"][0], launch["block"][0], launch["dynamic_smem_bytes"]) for launch in made.manifest["launches"]
    ]
    assert [call.values[1:4] for call in calls] == grids
    assert {call.stream for call in calls} == {STREAM}
    assert {call.attribute for call in calls} == {PROGRAMMATIC if kind.is_programmatic else COOPERATIVE}
    for index, plan in enumerate(plans):
        words = ctypes.string_at(products._words[index], plan.words.nbytes)
        assert words == plan.words.tobytes(), "the plan is on the device"


@pytest.mark.parametrize("append", [False, True], ids=["alone", "with the kernels before it"])
@pytest.mark.parametrize("engine", AttentionEngine)
def test_launches_of_an_attention_have_the_workers_parameters(
    recorder: Recorder, engine: AttentionEngine, append: bool
) -> None:
    made, kernel = attention_alone(engine)
    artifact = Artifact(made.files)
    given = tensors_of(artifact, *(["optional"] if append else []))
    recipe = made.manifest["attentions"][0]
    sizes = [recipe["append"]["parameter"]["size_bytes"]] * append + [recipe["parameter"]["size_bytes"]]
    calls = launched(recorder, artifact, given, sizes)
    own, shape = artifact._of_caches[0]._own, kernel.op.shape
    at = {name: tensor.address for name, tensor in given.items()}
    found = cache_map(shape, kernel.schedule.tiling_of(shape))

    def of(cache: str) -> bytes:
        return cache_bytes(
            found, engine, at[f"attention.{cache}"], lambda a, address: encoded(recorder, a, shape.dtype, address)
        )

    attended = AttentionBuffers(
        k=of("keys"),
        v=of("values"),
        q=at["q"],
        out=at["attention"],
        lengths=at["attention.lengths"],
        trace=0,
        **{name: own[name] for name in ("tasks", "queues", "partials", "arrivals", "refused")},
    )
    expected = [pack_attention_args(kernel.plan, attended, speculative=kernel.schedule.speculative)]
    if append:
        names = ("qkv", "frequencies", "keys", "values", "lengths")
        buffers = AppendBuffers(q=at["q"], **{name: at[f"attention.{name}"] for name in names})
        expected.insert(0, pack_append_args(shape, buffers))
    assert [call.parameter for call in calls] == expected
    assert {call.attribute for call in calls} == {PROGRAMMATIC}


@pytest.mark.parametrize(
    ("num_behind", "kind", "run_starts", "order"),
    [
        (1, PlanKind.N_LAUNCHES_PDL, (), "qkv attention o_proj"),
        (0, PlanKind.TWO_LAUNCHES_PDL, (), "qkv attention"),
        (3, PlanKind.RUNS, (1,), "qkv attention o_proj,gate_up,down"),
    ],
)
def test_an_attention_is_launched_between_what_it_reads_and_what_reads_it(
    recorder: Recorder,
    num_behind: int,
    kind: PlanKind,
    run_starts: tuple[int, ...],
    order: str,
) -> None:
    workload = between(num_behind=num_behind)
    made, _ = artifact_of(workload, candidate_of(workload, kind, run_starts))
    artifact, (recipe,) = Artifact(made.files), made.manifest["attentions"]
    given = tensors_of(artifact)
    assert "qkv" not in given, "the queries are in memory of the artifact"
    launches = artifact.bind(given)._launches
    products, (attended,) = artifact._products, artifact._of_caches
    assert products is not None
    recorder.clear()
    for one, launch in zip(order.split(), launches, strict=True):
        recipes = recipe if one == "attention" else made.manifest
        recorder.cuda.fake_parameter_bytes(recipes["parameter"]["size_bytes"])
        launch.enqueue(STREAM)
    calls = recorder.calls("cuLaunchKernelEx")
    at = {name: tensor.address for name, tensor in given.items()} | artifact._memory
    for one, call in zip(order.split(), calls, strict=True):
        fields = (recipe if one == "attention" else made.manifest)["parameter"]["fields"]
        offsets = {field["name"]: field["offset"] for field in fields}
        (first,) = struct.unpack_from("<Q", call.parameter, offsets["q" if one == "attention" else "words"])
        if one == "attention":
            assert first == at["qkv"]
            (out,) = struct.unpack_from("<Q", call.parameter, offsets["out"])
            assert out == at["attention"]
        else:
            assert first == products._words[plan_of(made.manifest, one)]
            caches = struct.unpack_from("<4Q", call.parameter, offsets["qkv.keys"])
            wanted = ("attention.keys", "attention.values", "attention.lengths", "qkv.frequencies")
            assert caches == tuple(at[name] for name in wanted)
    assert attended._append_function is None
    with pytest.raises(
        RuntimeFailure, match=r"the artifact is of qkv, attention.*, but a call has operands only for an attention with"
    ):
        Attention(artifact)


def plan_of(manifest: dict[str, Any], ops: str) -> int:
    """The index of the launch that computes `ops`, and of its plan."""
    return [",".join(launch["ops"]) for launch in manifest["launches"]].index(ops)


def test_launches_of_one_artifact_share_what_lies_between_them(recorder: Recorder) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    artifact = Artifact(made.files)
    given = tensors_of(artifact)
    recorder.clear()
    artifact.bind(given)
    allocated = len(recorder.calls("cuMemAlloc_v2"))
    assert allocated == len(artifact._memory) > 0
    artifact.bind(given)
    assert len(recorder.calls("cuMemAlloc_v2")) == allocated, "a second layer has no separate memory"


@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL])
def test_a_run_of_a_block_takes_the_tensors_of_the_documentation(recorder: Recorder, kind: PlanKind) -> None:
    made, plans = chain(kind, decoder_block("llama3-70b", m=3, tp=8, run=Run.MLP))
    artifact = Artifact(made.files)
    given = tensors_of(artifact)
    assert set(given) == {"residual", "residual.squares", "gate_up.w", "down.w", "down"}
    assert given["residual.squares"].shape == (4,), "with space for a few more rows"
    recorder.clear()
    artifact.bind(given).enqueue(STREAM)
    assert len(recorder.calls("cuLaunchKernelEx")) == len(plans)


def changed(made: ArtifactFiles, **fields: Any) -> dict[str, bytes]:
    return {**made.files, "manifest.json": json.dumps(made.manifest | fields).encode()}


def test_what_is_no_artifact_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    for files, says in (
        ({}, "has no manifest.json"),
        (changed(made, format=7), "is of format 7, but this version reads formats up to 6"),
        ({**made.files, "plan0.bin": b""}, "plan0.bin of the artifact is not the file in the manifest"),
        (changed(made, kernel=made.manifest["kernel"] | {"cubin": None}), "there is nothing to run"),
    ):
        with pytest.raises(RuntimeFailure, match=says):
            Artifact(files)
    with pytest.raises(RuntimeFailure, match="neither a folder nor a zip"):
        load_artifact(tmp_path / "none")


def test_a_zip_and_a_folder_are_read_alike(tmp_path: Path) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in made.files.items():
            archive.writestr(name, data)
            (tmp_path / name).write_bytes(data)
    (tmp_path / "a.zip").rename(folder := tmp_path.parent / f"{tmp_path.name}.zip")
    assert load_artifact(folder).manifest == load_artifact(tmp_path).manifest


def test_an_array_that_does_not_fit_is_refused_by_name(recorder: Recorder) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    artifact = Artifact(made.files)
    given = tensors_of(artifact)
    for name, array, says in (
        ("gate_up.w", None, "gate_up.w is missing: pass \\[768, 512\\] of fp16, the weight"),
        ("down.w", replace(given["down.w"], shape=(4, 4)), "down\\.w is \\[4, 4\\] of bits"),
        ("down.w", replace(given["down.w"], typestr="<f4"), "of float32"),
        ("qkv", replace(given["qkv"], address=0x108), "use an address that is a multiple of 16"),
        ("nobody", given["qkv"], "there is no tensor nobody: pass down, "),
    ):
        wrong = {key: value for key, value in {**given, name: array}.items() if value is not None}
        with pytest.raises(RuntimeFailure, match=says):
            artifact.bind(wrong)


def test_a_device_that_does_not_hold_all_ctas_is_refused(recorder: Recorder) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    assert made.manifest["launches"][0]["needs_all_ctas"]
    recorder.cuda.fake_occupancy(0, 132)
    with pytest.raises(RuntimeFailure, match="CTAs resident at once, and this device holds 0"):
        Artifact(made.files)


def test_half_of_what_goes_in_front_is_refused(recorder: Recorder) -> None:
    made, _ = attention_alone()
    artifact = Artifact(made.files)
    given = tensors_of(artifact, "optional")
    del given["attention.frequencies"]
    with pytest.raises(
        RuntimeFailure, match=r"attention\.frequencies is missing: pass all tensors of the append kernel, or"
    ):
        artifact.bind(given)
