"""Convolutions in a pack and as an artifact: the driver gets what the worker packs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.support.convs import BY_WARPGROUPS, CASES
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.packs import Made, ladder, make
from tests.unit.runtime.encoded import encoded
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.packs.programs import Program, program_of
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.tensor_maps import tensor_maps

STREAM = 0x99
ALL = {**BY_WARPGROUPS, "mma": CASES["a stride, a shortcut"]}


def workers_parameters(
    recorder: Recorder, made: Made, at: dict[str, int], spaces: list[tuple[int, int]]
) -> list[bytes]:
    """The parameter of each launch; `at` has the addresses of tensors, `spaces` those of words and a workspace."""
    workload, found = made.workload, list[bytes]()
    buffers = tuple(
        OpBuffers(
            a=at[op.source],
            w=at.get(f"{op.name}.w", 0),
            bias=at.get(f"{op.name}.bias", 0),
            c=at[op.name],
            residual=at[op.residual_source] if op.residual else 0,
            m=op.m,
            n=op.n,
            k=op.k,
        )
        for op in workload.tile_ops
    )
    for plan, (words, workspace) in zip(made.plans, spaces, strict=True):
        args = pack_args(words, workspace, 55, plan, buffers, is_dependent=made.candidate.plan_kind.is_programmatic)
        recipes = tensor_maps(workload, plan.graph.tiling) if plan.graph.tiling.engine is Engine.WGMMA else ()
        maps = (encoded(recorder, r, workload.dtype, getattr(buffers[r.op], r.operand)) for r in recipes)
        found.append(extend_args(args, first_tasks(plan), tuple(maps)) if recipes else args)
    return found


def spaces_of(program: Program, memory: int) -> list[tuple[int, int]]:
    found = []
    for part in program.parts:
        patches = {patch.offset: patch.addend for patch in part.patches if patch.tensor == "memory"}
        found.append((memory + patches[0], memory + patches[8]))
    return found


@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES])
@pytest.mark.parametrize("name", ALL)
def test_parameters_of_a_pack_are_the_workers(recorder: Recorder, tmp_path: Path, name: str, kind: PlanKind) -> None:
    workload, tiling = ALL[name]
    made, c = make(kind, tiling, workload=workload), recorder.runtime
    program, rows = program_of(made.kernel), workload.tile_ops[0].m
    write_pack([ladder(made.kernel)], tmp_path / "a.tunerpack")
    pack, layer, choice = ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
    native.checked(c, c.tuner_pack_open(str(tmp_path / "a.tunerpack").encode(), ctypes.byref(pack)))
    try:
        native.checked(c, c.tuner_layer_find(pack, 0, rows, 0, ctypes.byref(choice)))
        memory = DeviceMemory(choice.memory_bytes)
        native.checked(c, c.tuner_layer_prepare(pack, choice, memory.address, 0x77, 4, ctypes.byref(layer)))
        at = {one.name: 0x10000 * (1 + place) for place, one in enumerate(program.operands)}
        between = next(fill for fill in made.kernel.manifest["tensors"] if fill["role"] == "intermediate")["name"]
        wanted = workers_parameters(recorder, made, {**at, between: memory.address}, spaces_of(program, memory.address))
        recorder.clear()
        recorder.cuda.fake_parameter_bytes(max(map(len, wanted)))
        addresses = (ctypes.c_void_p * len(at))(*at.values())
        given = native.LayerTensors(addresses=addresses, num_addresses=len(at), num_pages=0)
        native.checked(c, c.tuner_layer_launch(layer, given, STREAM, 0))
        calls = recorder.calls("cuLaunchKernelEx")
        assert [call.parameter[: len(one)] for call, one in zip(calls, wanted, strict=True)] == wanted
        c.tuner_layer_release(layer)
    finally:
        c.tuner_pack_close(pack)


def test_a_map_of_pixels_that_is_out_of_range_is_refused(recorder: Recorder, tmp_path: Path) -> None:
    workload, tiling = BY_WARPGROUPS["a stride, a shortcut"]
    made, c, path = make(PlanKind.FUSED, tiling, workload=workload), recorder.runtime, tmp_path / "a.tunerpack"
    for launch in made.kernel.manifest["launches"]:
        launch["tensor_maps"][0]["element_strides"] = [1, 9, 9, 1]
    write_pack([ladder(made.kernel)], path)
    pack = ctypes.c_void_p()
    with pytest.raises(native.RuntimeFailure, match="its images, corners or stride are out of range"):
        native.checked(c, c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
