"""A chain without an attention in a pack: the driver gets what the worker packs, for any number of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.packs import TILINGS, Made, ladder, make, mlp
from tests.unit.runtime.encoded import encoded
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.packs.contents import Entry, Rung
from tuner.packs.programs import program_of
from tuner.packs.write import write_pack
from tuner.runtime import RuntimeFailure, WrongOperand, load
from tuner.runtime.binding import native
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.tensor_maps import tensor_maps

STREAM = 0x99
#: Addresses of operands; multiples of 16.
ADDRESSES = {"residual": 0x10000, "gate_up.w": 0x20000, "residual.squares": 0x30000, "down.w": 0x40000, "down": 0x50000}


def workers_parameters(
    recorder: Recorder, made: Made, m: int, at: dict[str, int], spaces: list[tuple[int, int]]
) -> Any:
    """The parameter of each launch for `m` rows; `spaces` has the addresses of its words and its workspace."""
    workload: Workload = mlp(m, norm=bool(made.workload.tile_ops[0].norm))
    buffers = tuple(
        OpBuffers(
            a=at[op.source],
            w=at[f"{op.name}.w"],
            bias=0,
            c=at[op.name],
            residual=at[op.residual_source] if op.residual else 0,
            row_scale=at[f"{op.norm}.squares"] if op.norm else 0,
            m=m,
            n=op.n,
            k=op.k,
        )
        for op in workload.tile_ops
    )
    is_programmatic = made.candidate.plan_kind.is_programmatic
    for plan, (words, workspace) in zip(made.plans, spaces, strict=True):
        args = pack_args(words, workspace, 55, plan, buffers, is_dependent=is_programmatic)
        recipes = tensor_maps(workload, plan.graph.tiling) if plan.graph.tiling.engine is Engine.WGMMA else []
        maps = (encoded(recorder, r, Dtype.FP16, getattr(buffers[r.op], r.operand)) for r in recipes)
        yield extend_args(args, first_tasks(plan), tuple(maps)) if recipes else args


class Prepared:
    """A chain of a pack, prepared by C."""

    def __init__(self, recorder: Recorder, made: Made, path: Path) -> None:
        self.recorder, self.made, self.c = recorder, made, recorder.runtime
        self.pack, self.layer, self.choice = ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
        write_pack([ladder(made.kernel)], path)
        self.checked(self.c.tuner_pack_open(str(path).encode(), ctypes.byref(self.pack)))
        self.checked(self.c.tuner_layer_find(self.pack, 0, 9, 0, ctypes.byref(self.choice)))
        self.memory = DeviceMemory(self.choice.memory_bytes)
        self.checked(
            self.c.tuner_layer_prepare(self.pack, self.choice, self.memory.address, 0x77, 4, ctypes.byref(self.layer))
        )

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def launch(self, m: int | None, **changed: int) -> None:
        addresses = list((ADDRESSES | changed).values())
        given = native.LayerTensors(
            addresses=(ctypes.c_void_p * len(addresses))(*addresses), num_addresses=len(addresses), num_pages=0
        )
        if m is None:
            self.checked(self.c.tuner_layer_launch(self.layer, given, STREAM, 0))
        else:
            self.checked(self.c.tuner_layer_launch_rows(self.layer, m, given, STREAM, 0))

    def spaces(self) -> Iterator[tuple[int, int]]:
        for part in program_of(self.made.kernel).parts:
            patches = {patch.offset: patch.addend for patch in part.patches if patch.tensor == "memory"}
            yield self.memory.address + patches[0], self.memory.address + patches[8]

    def close(self) -> None:
        self.c.tuner_layer_release(self.layer)
        self.close_pack()

    def close_pack(self) -> None:
        self.c.tuner_pack_close(self.pack)


@pytest.fixture
def opened(recorder: Recorder) -> Iterator[list[Prepared]]:
    made: list[Prepared] = []
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("engine", TILINGS)
@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES])
def test_parameters_of_any_number_of_rows_are_the_workers(
    recorder: Recorder, tmp_path: Path, opened: list[Prepared], engine: Engine, kind: PlanKind
) -> None:
    made = make(kind, TILINGS[engine], workload=mlp())
    one = Prepared(recorder, made, tmp_path / "a.tunerpack")
    opened.append(one)
    at = {**ADDRESSES, "gate_up": one.memory.address}
    for m in (1, 7, 16):
        wanted = list(workers_parameters(recorder, made, m, at, list(one.spaces())))
        recorder.clear()
        recorder.cuda.fake_parameter_bytes(max(map(len, wanted)))
        one.launch(m)
        calls = recorder.calls("cuLaunchKernelEx")
        assert [call.parameter[: len(parameter)] for call, parameter in zip(calls, wanted, strict=True)] == wanted
        assert {call.stream for call in calls} == {STREAM}
    recorder.clear()
    one.launch(None)
    assert [call.parameter for call in recorder.calls("cuLaunchKernelEx")] == [call.parameter for call in calls], "all"
    with pytest.raises(RuntimeFailure, match="rows are 17: give 1 to 16"):
        one.launch(17)
    with pytest.raises(RuntimeFailure, match="rows are 0: give 1 to 16"):
        one.launch(0)
    with pytest.raises(RuntimeFailure, match="down is null, and the kernel needs it"):
        one.launch(4, down=0)


def test_what_is_prepared_keeps_its_pack_and_modules_are_shared(recorder: Recorder, tmp_path: Path) -> None:
    one = Prepared(recorder, make(PlanKind.TWO_LAUNCHES, workload=mlp()), tmp_path / "a.tunerpack")
    other = ctypes.c_void_p()
    again = one.c.tuner_layer_prepare(one.pack, one.choice, one.memory.address, 0x77, 4, ctypes.byref(other))
    one.checked(again)
    assert len(recorder.calls("cuModuleLoadData")) == 1, "of both ops, and of both launches of each"
    one.close_pack()
    for layer, num_unloaded in ((other, 0), (one.layer, 1)):
        recorder.clear()
        one.launch(7)
        assert len(recorder.calls("cuLaunchKernelEx")) == 2
        one.c.tuner_layer_release(layer)
        assert len(recorder.calls("cuModuleUnload")) == num_unloaded


def test_a_ladder_of_a_chain_is_asked_by_rows(recorder: Recorder, tmp_path: Path) -> None:
    kernel = make(PlanKind.FUSED_PDL, workload=mlp()).kernel
    rungs = (
        Rung(m_lo=1, m_hi=4, kernel=None, library={"algorithm": 7}),
        Rung(m_lo=9, m_hi=16, kernel=kernel, speedup=1.5),
    )
    write_pack([Entry(shape=kernel.shape, rungs=rungs)], tmp_path / "a.tunerpack")
    c, pack, choice = recorder.runtime, ctypes.c_void_p(), native.AttentionChoice()
    native.checked(c, c.tuner_pack_open(str(tmp_path / "a.tunerpack").encode(), ctypes.byref(pack)))
    found = [c.tuner_layer_find(pack, 0, rows, 0, ctypes.byref(choice)) for rows in (1, 4, 5, 8, 9, 16, 17)]
    assert found == [native.LIBRARY] * 2 + [native.NONE] * 2 + [native.OK] * 2 + [native.NONE]
    assert b"no entry for 17 rows of fp16 64 -> gate_up 256 norm gated silu -> down 64 residual" in c.tuner_error()
    shape = native.LayerShape()
    assert c.tuner_pack_layer(pack, 0, ctypes.byref(shape), None) == native.OK
    assert (shape.attention.heads, shape.d_in, shape.attention.d_out) == (0, 64, 64)
    assert (shape.num_in_front, shape.num_products, shape.ops) == (2, 2, b"gate_up down")
    c.tuner_pack_close(pack)


@pytest.fixture
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)


@pytest.mark.usefixtures("_on_the_recorder")
@pytest.mark.parametrize("engine", [Engine.WGMMA, Engine.MMA])
def test_a_pack_gives_a_chain_to_python_for_as_few_rows_as_asked(
    recorder: Recorder, tmp_path: Path, engine: Engine
) -> None:
    made = make(PlanKind.FUSED_PDL, TILINGS[engine], workload=mlp())
    write_pack([ladder(made.kernel)], tmp_path / "a.tunerpack")
    chain = load(tmp_path / "a.tunerpack").chain("gate_up", "down", rows=7)
    assert chain is not None
    shapes = {name: tensor["shape"] for name, tensor in chain.tensors.items() if tensor["role"] != "intermediate"}
    given = {
        name: Interfaced(aligned(*shape, dtype="float32" if name == "residual.squares" else "uint16"))
        for name, shape in shapes.items()
    }
    for name in ("residual", "down"):
        given[name] = Interfaced(aligned(7, 64, dtype="uint16"))
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(made.kernel.manifest["parameter"]["size_bytes"])
    assert chain(given, stream=STREAM) is given["down"]
    [call] = recorder.calls("cuLaunchKernelEx")
    at = {name: one.__cuda_array_interface__["data"][0] for name, one in given.items()}
    words, workspace, between = (int.from_bytes(call.parameter[o : o + 8], "little") for o in (0, 8, 128))
    [wanted] = workers_parameters(recorder, made, 7, {**at, "gate_up": between}, [(words, workspace)])
    assert call.parameter[: len(wanted)] == wanted
    for rows, says in ((17, "there are 17 rows, but the kernels support 1 to 16"), (0, "there are 0 rows")):
        wrong = {name: Interfaced(aligned(rows, 64, dtype="uint16")) for name in ("residual", "down")}
        with pytest.raises(WrongOperand, match=says):
            chain({**given, **wrong}, stream=STREAM)
    with pytest.raises(WrongOperand, match=r"down is \[6, 64\] of bits: pass \[7, 64\] of fp16, the output"):
        chain({**given, "down": Interfaced(aligned(6, 64, dtype="uint16"))}, stream=STREAM)
