"""The C runtime passes the same bytes to the driver as the worker's own launcher."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.support.cases import wgmma
from tests.support.native.recorder import Recorder
from tests.support.packs import TILINGS, Made, ffn, make
from tests.unit.runtime.opened import ADDRESSES, Opened
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import ASSIGNMENTS, Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Epilogue
from tuner.runtime.binding import native
from tuner.workers.source.launch_args import (
    OpBuffers,
    extend_args,
    first_tasks,
    needs_co_residency,
    pack_args,
)
from tuner.workers.source.tensor_maps import TensorMap, tensor_maps

KINDS = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]
COOPERATIVE, PROGRAMMATIC = 2, 6


def buffers(workload: Workload, m: int) -> tuple[OpBuffers, ...]:
    """The addresses given to the runtime, as the worker's launcher takes them."""
    a, (up, down) = ADDRESSES, workload.tile_ops
    first = OpBuffers(a=a["x"], w=a["w1"], bias=a["b1"], c=a["hidden"], row_scale=a["row_scale"], m=m, n=up.n, k=up.k)
    second = OpBuffers(
        a=a["hidden"], w=a["w2"], bias=a["b2"], c=a["y"], residual=a["residual"], m=m, n=down.n, k=down.k
    )
    return first, second


def encoded(recorder: Recorder, tensor_map: TensorMap, address: int, m: int) -> bytes:
    """The map as the worker requests it from the driver, except for the rows."""
    rank = len(tensor_map.dims)
    dims = [m if i == 1 and tensor_map.operand != "w" else dim for i, dim in enumerate(tensor_map.dims)]
    raw = ctypes.create_string_buffer(192)
    at = -(-ctypes.addressof(raw) // 64) * 64
    recorder.cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        6,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides_bytes),
        (ctypes.c_uint32 * rank)(*tensor_map.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        *(0, 3, 2, 0),
    )
    return ctypes.string_at(at, 128)


def workers_parameters(opened: Opened, m: int) -> list[bytes]:
    """The parameters of the worker's launcher, launch by launch."""
    made, (words, workspaces) = opened.made, addresses(opened)
    ops, out = buffers(made.workload, m), []
    for index, plan in enumerate(made.plans):
        args = pack_args(
            words[index],
            workspaces[index],
            55,
            plan,
            ops,
            is_dependent=made.candidate.plan_kind.is_programmatic,
            is_second=plan.is_paired and index == 1,
        )
        tiling = plan.graph.tiling
        if tiling.engine is Engine.WGMMA:
            recipes = tensor_maps(made.workload, tiling)
            maps = tuple(encoded(opened.recorder, r, getattr(ops[r.op], r.operand), m) for r in recipes)
            args = extend_args(args, first_tasks(plan), maps)
        out.append(args)
    return out


def addresses(opened: Opened) -> tuple[list[int], list[int]]:
    """The addresses of each plan's words and of its workspace; the words are found by their contents."""
    manifest = opened.made.kernel.manifest
    spaces: dict[int, int] = {}
    end = opened.memory.address
    for launch in manifest["launches"]:
        space = launch["workspace"]
        if space["index"] not in spaces:
            spaces[space["index"]] = end
            end += -(-space["bytes"] // 256) * 256
    words = []
    for launch in manifest["launches"]:
        words.append(end)
        data = opened.made.kernel.files[launch["plan"]]
        assert ctypes.string_at(end, len(data)) == data
        end += -(-len(data) // 256) * 256
    assert end - opened.memory.address == opened.memory.num_bytes
    return words, [spaces[launch["workspace"]["index"]] for launch in manifest["launches"]]


CASES = [(kind, engine, full) for kind in KINDS for engine in Engine for full in (False, True)]


def case(kind: PlanKind, engine: Engine, full: bool, assignment: Assignment = Assignment.STATIC) -> Made:
    rows = 4 if engine is Engine.SIMT else 16
    return make(kind, TILINGS[engine], workload=ffn(rows, full=full), assignment=assignment)


@pytest.mark.parametrize(("kind", "engine", "full"), CASES, ids=str)
def test_parameters_are_the_workers_for_every_plan_kind_and_engine(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, engine: Engine, full: bool
) -> None:
    made = case(kind, engine, full)
    with Opened(recorder, made, tmp_path) as opened:
        for m in (made.workload.tile_ops[0].m, 1):
            recorder.clear()
            opened.launch(m)
            launches = [call for call in recorder.calls("cuLaunchKernelEx") if len(call.data) != 20]
            assert [call.parameter for call in launches] == workers_parameters(opened, m)


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_parameters_are_the_workers_for_every_assignment_and_a_stored_tile(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, assignment: Assignment
) -> None:
    many = ffn(640)  # more tiles than CTAs
    made = make(kind, wgmma((16, 64, 64), epilogue=Epilogue.TMA), workload=many, assignment=assignment)
    with Opened(recorder, made, tmp_path) as opened:
        opened.launch(600)
        assert [call.parameter for call in recorder.calls("cuLaunchKernelEx")] == workers_parameters(opened, 600)


@pytest.mark.parametrize("no_pdl", [False, True])
@pytest.mark.parametrize(("kind", "engine"), [(kind, engine) for kind in KINDS for engine in Engine], ids=str)
def test_grid_block_stream_and_attribute_are_the_manifests(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, engine: Engine, no_pdl: bool
) -> None:
    made = case(kind, engine, full=True)
    with Opened(recorder, made, tmp_path) as opened:
        recorder.clear()
        opened.launch(4, flags=native.NO_PDL if no_pdl else 0)
        calls = [call for call in recorder.calls("cuLaunchKernelEx") if len(call.data) != 20]
        for call, launch, plan in zip(calls, made.kernel.manifest["launches"], made.plans, strict=True):
            assert call.values[1:4] == (launch["grid"][0], launch["block"][0], launch["dynamic_smem_bytes"])
            assert call.stream == (0x5EED0 if launch["stream"] else 0x99)
            needed = needs_co_residency(plan)
            programmatic = kind.is_programmatic and not no_pdl
            wanted = (PROGRAMMATIC, 1) if programmatic else (COOPERATIVE, 1) if needed else None
            assert call.attribute == wanted
            is_dependent = int.from_bytes(call.parameter[24:28], "little")
            assert is_dependent == int(programmatic)


def test_two_streams_fork_wait_for_the_gate_and_join(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, case(PlanKind.TWO_STREAMS, Engine.MMA, full=True), tmp_path) as opened:
        recorder.clear()
        opened.launch(16)
        names = [call.name for call in recorder.calls()]
        assert names == [
            *("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx"),
            *("cuLaunchKernelEx", "cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent"),
        ]
        first, gate, second = recorder.calls("cuLaunchKernelEx")
        assert (first.stream, gate.stream, second.stream) == (0x99, 0x5EED0, 0x5EED0)
        assert gate.values[1:4] == (1, 1, 0)
        _, workspaces = addresses(opened)
        num_ctas = opened.made.kernel.manifest["launches"][1]["start_gate"]["num_ctas"]
        assert gate.data == b"".join(
            value.to_bytes(size, "little") for value, size in ((workspaces[1], 8), (num_ctas, 4), (55, 8))
        )


def test_maps_are_encoded_once_for_a_set_of_addresses_and_rows(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, case(PlanKind.FUSED, Engine.WGMMA, full=False), tmp_path, num_cached=3) as opened:
        recorder.clear()
        for _ in range(5):
            opened.launch(16)
        assert len(recorder.calls("cuTensorMapEncodeTiled")) == 4
        opened.launch(9)
        opened.launch(16, y=0x990000)
        assert len(recorder.calls("cuTensorMapEncodeTiled")) == 12
        for y in range(0x800000, 0x800000 + 0x10000 * 20, 0x10000):  # more than are cached, and each is still correct
            opened.launch(16, y=y)
            output = 104 + 64 + 24  # of the second op in the parameter
            assert int.from_bytes(recorder.calls("cuLaunchKernelEx")[-1].parameter[output:][:8], "little") == y
