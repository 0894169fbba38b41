"""An attention of a pack in the C runtime passes the same to the driver as the worker's launchers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_packs import MadeAttention, make_attention, table
from tests.support.attention_parameter import AttentionBuffers, cache_bytes, pack_attention_args, weights_at
from tests.support.lanes import one_in
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.packs import ladder, make
from tests.unit.runtime.encoded import encoded
from tests.unit.runtime.opened import c_shape
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.ops.attention.pack.shape import AttentionShape
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.source import cache_map
from tuner.packs.programs import program_of
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.runtime.binding.native import RuntimeFailure
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.tensor_maps import tensor_maps

STREAM, COOPERATIVE, PROGRAMMATIC = 0x99, 2, 6
TENSORS = {name: 0x10000 * (i + 1) for i, (name, _) in enumerate(native.AttentionTensors._fields_)}
NUM_PAGES = 300


def c_attention(shape: AttentionShape) -> native.AttentionShape:
    return native.AttentionShape(
        dtype=("fp16", "bf16").index(shape.dtype),
        flags=native.HEADS_FIRST if shape.heads_first else 0,
        **{name: getattr(shape, name) for name, _ in native.AttentionShape._fields_ if name not in ("dtype", "flags")},
    )


class Prepared:
    """An attention of a pack, prepared."""

    def __init__(self, recorder: Recorder, made: MadeAttention, path: Path) -> None:
        self.recorder, self.made, self.c = recorder, made, recorder.runtime
        self.pack, self.attention, self.choice = ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
        entry, op = table(made), made.attention.op
        write_pack([entry], path)
        self.checked(self.c.tuner_pack_open(str(path).encode(), ctypes.byref(self.pack)))
        found = self.c.tuner_attention_find(
            self.pack, c_attention(entry.shape), op.shape.sequences, op.shape.max_length, ctypes.byref(self.choice)
        )
        assert found == native.OK
        assert bytes(self.choice.digest).hex() == made.kernel.digest
        self.memory = DeviceMemory(self.choice.memory_bytes)
        self.program = program_of(made.kernel)
        self.prepare()

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def prepare(self) -> None:
        self.checked(
            self.c.tuner_attention_prepare(
                self.pack, self.choice, self.memory.address, 0x77, 4, ctypes.byref(self.attention)
            )
        )

    def close(self) -> None:
        self.c.tuner_attention_release(self.attention)
        self.c.tuner_pack_close(self.pack)

    @property
    def needed(self) -> dict[str, int]:
        """The required tensors."""
        op = self.made.attention.op
        without = {"num_pages"} | (set() if self.made.plans else {"w"}) | (set() if op.form.paged else {"pages"})
        given = {name: at for name, at in TENSORS.items() if name not in without}
        return given | ({"num_pages": NUM_PAGES} if op.form.paged else {})

    def launch(self, flags: int = 0, **changed: int) -> None:
        given = native.AttentionTensors(**{**self.needed, **changed})
        self.checked(self.c.tuner_attention_launch(self.attention, given, STREAM, flags))

    def at(self, name: str) -> int:
        """The device address of a file of the artifact; asserts that its contents are there."""
        [fill] = [fill for fill in self.program.fills if fill.name == name]
        data = self.made.kernel.files[name]
        assert self.memory.read(fill.offset, len(data)) == data
        return self.memory.address + fill.offset


@contextmanager
def prepared(recorder: Recorder, made: MadeAttention, folder: Path) -> Iterator[Prepared]:
    one = Prepared(recorder, made, folder / "attention.tunerpack")
    try:
        yield one
    finally:
        one.close()


def workers_attention(one: Prepared) -> bytes:
    """The parameter of the attention's launch, as the worker packs it."""
    kernel, recorder, given = one.made.attention, one.recorder, one.needed
    recipe, shape = one.made.kernel.manifest["attentions"][0], kernel.op.shape
    workspace = one.memory.address + one.program.refused_offset - recipe["workspace"]["refused"]
    found = cache_map(shape, kernel.schedule.tiling_of(shape), kernel.op.form.paged)
    if kernel.op.form.paged:
        dims = [*found.dims]
        dims[1] = NUM_PAGES * recipe["pages"]["rows_per_page"]
        found = type(found)(**{**vars(found), "dims": tuple(dims)})

    def of(cache: str) -> bytes:
        return cache_bytes(
            found, kernel.schedule.engine, given[cache], lambda a, at: encoded(recorder, a, shape.dtype, at)
        )

    buffers = AttentionBuffers(
        k=of("keys"),
        v=of("values"),
        q=given["q"],
        out=one.memory.address if one.made.plans else given["y"],
        lengths=given["lengths"],
        pages=given.get("pages", 0),
        tasks=one.at("attention0_tasks.bin"),
        queues=one.at("attention0_queues.bin"),
        trace=0,
        **{name: workspace + recipe["workspace"][name] for name in ("arrivals", "partials", "refused")},
    )
    weights = weights_at(one.made.workload, 0, kernel.schedule, given.get("w", 0))
    packed = bytearray(
        pack_attention_args(kernel.plan, buffers, speculative=kernel.schedule.speculative, next_weights=weights)
    )
    if kernel.op.form.paged:
        [offset] = [field["offset"] for field in recipe["parameter"]["fields"] if field["name"] == "num_pages"]
        packed[offset : offset + 4] = struct.pack("<i", NUM_PAGES)
    return bytes(packed)


def workers_product(one: Prepared, *, is_programmatic: bool) -> bytes:
    """The parameter of the product after it."""
    [plan], [op], given = one.made.plans, one.made.workload.tile_ops, one.needed
    part = one.program.parts[1]
    assert part.abort_offset is not None
    workspace = one.memory.address + part.abort_offset - part.recipe["workspace"]["abort_record"]["offset"]
    buffers = (OpBuffers(a=one.memory.address, w=given["w"], bias=0, c=given["y"], m=op.m, n=op.n, k=op.k),)
    args = pack_args(one.at("plan0.bin"), workspace, 55, plan, buffers, is_dependent=is_programmatic)
    if plan.graph.tiling.engine is not Engine.WGMMA:
        return args
    recipes, dtype = tensor_maps(one.made.workload, plan.graph.tiling), one.made.workload.dtype
    maps = tuple(encoded(one.recorder, r, dtype, getattr(buffers[r.op], r.operand)) for r in recipes)
    return extend_args(args, first_tasks(plan), maps)


CASES: dict[str, dict[str, Any]] = {
    "alone": {},
    "two new tokens": {"new_tokens": 2},
    "pages": {"form": {"page_tokens": 16}},
    "pages, tokens first": {"form": {"page_tokens": 64, "heads_first": False, "window": 100, "soft_cap": 20.0}},
    "with its projection": {"d_out": 512},
    "which is not programmatic": {"d_out": 512, "kind": PlanKind.TWO_LAUNCHES},
    "whose weights are requested ahead": {"d_out": 512, "next_percent": 50},
    "by cp.async": {"by": AttentionEngine.MMA},
    "pages by cp.async, with its projection": {"by": AttentionEngine.MMA, "d_out": 512, "form": {"page_tokens": 16}},
    "by wgmma": {"d_out": 512, "engine": Engine.WGMMA, "sequences": 64, "form": {"page_tokens": 32}},
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", one_in(3, CASES.values()), ids=CASES)
def test_parameters_are_the_workers(recorder: Recorder, tmp_path: Path, asked: dict[str, Any]) -> None:
    made = make_attention(**asked)
    with prepared(recorder, made, tmp_path) as one:
        for flags in (0, native.NO_PDL):
            is_programmatic = made.candidate.plan_kind.is_programmatic and flags == 0
            wanted = [workers_attention(one)]
            wanted += [workers_product(one, is_programmatic=is_programmatic)] if made.plans else []
            recorder.clear()
            recorder.cuda.fake_parameter_bytes(max(map(len, wanted)))
            one.launch(flags)
            calls = recorder.calls("cuLaunchKernelEx")
            for call, parameter in zip(calls, wanted, strict=True):
                assert call.parameter[: len(parameter)] == parameter
                assert call.stream == STREAM
            assert calls[0].attribute == ((PROGRAMMATIC, 1) if is_programmatic else None)


def test_grids_blocks_and_kernels_are_the_manifests(recorder: Recorder, tmp_path: Path) -> None:
    made = make_attention(d_out=512)
    with prepared(recorder, made, tmp_path) as one:
        cubins = [call.data for call in recorder.calls("cuModuleLoadData")]
        assert [data[:12] for data in cubins] == [b"\x7fELF attenti", b"\x7fELF product"]
        names = [call.data.rstrip(b"\0").decode() for call in recorder.calls("cuModuleGetFunction")]
        recipe, [launch] = made.kernel.manifest["attentions"][0], made.kernel.manifest["launches"]
        assert names == [recipe["kernel"]["name"], made.kernel.manifest["kernel"]["name"]]
        recorder.clear()
        one.launch()
        found = [call.values[1:4] for call in recorder.calls("cuLaunchKernelEx")]
        assert found == [(each["grid"][0], each["block"][0], each["dynamic_smem_bytes"]) for each in (recipe, launch)]


def test_parameters_are_packed_once_for_a_set_of_tensors(recorder: Recorder, tmp_path: Path) -> None:
    with prepared(recorder, make_attention(), tmp_path) as one:
        recorder.clear()
        for _ in range(3):
            one.launch()
        assert len(recorder.calls("cuTensorMapEncodeTiled")) == 2
        one.launch(q=0x990000)
        assert len(recorder.calls("cuTensorMapEncodeTiled")) == 4


def test_an_attention_by_cp_async_needs_no_tensor_map(recorder: Recorder, tmp_path: Path) -> None:
    with prepared(recorder, make_attention(by=AttentionEngine.MMA, d_out=512), tmp_path) as one:
        recorder.clear()
        one.launch()
        assert recorder.calls("cuTensorMapEncodeTiled") == []
        assert len(recorder.calls("cuLaunchKernelEx")) == 2


def test_a_table_answers_by_sequences_and_the_least_context_that_is_long_enough(
    recorder: Recorder, tmp_path: Path
) -> None:
    made = [make_attention(sequences=n, max_length=t) for n, t in ((1, 700), (1, 1400), (4, 700))]
    path, c, pack = tmp_path / "several.tunerpack", recorder.runtime, ctypes.c_void_p()
    entry, ffn = table(*made, library=[(4, 5000)]), make().kernel
    write_pack([ladder(ffn), entry, table(make_attention(d_out=512))], path)
    native.checked(c, c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
    shape, choice, count = c_attention(entry.shape), native.AttentionChoice(), ctypes.c_uint32()

    def found(sequences: int, length: int) -> tuple[int, int, str]:
        status = c.tuner_attention_find(pack, shape, sequences, length, ctypes.byref(choice))
        return status, choice.max_length, bytes(choice.digest).hex()[:8]

    digests = [one.kernel.digest[:8] for one in made]
    assert found(1, 1) == found(1, 700) == (native.OK, 700, digests[0])
    assert (choice.speedup, choice.sequences) == (1.5, 1)
    assert found(1, 701) == (native.OK, 1400, digests[1])
    assert found(4, 700) == (native.OK, 700, digests[2])
    assert found(4, 701)[:2] == (native.LIBRARY, 5000)
    assert choice.text == b"way cudnn"
    assert [found(*asked)[0] for asked in ((1, 1401), (2, 700), (4, 5001))] == [native.NONE] * 3
    assert b"no entry for 4 sequences of up to 5001 tokens of bf16 attention" in c.tuner_error()
    shape.scale *= 1 + 1e-7
    assert found(4, 700)[0] == native.OK, "but for a rounding"
    shape.window = 5
    assert found(4, 700)[0] == native.NONE
    first = native.AttentionShape()
    assert c.tuner_pack_attention(pack, 1, ctypes.byref(first), ctypes.byref(count)) == native.OK
    assert (count.value, first.d_out) == (2, 512)
    assert c.tuner_pack_attention(pack, 2, None, None) == native.NONE
    assert c.tuner_ffn_find(pack, c_shape(ladder(ffn).shape), 16, ctypes.byref(native.Choice())) == native.OK
    assert c.tuner_pack_check(pack, 0) == native.OK
    recorder.cuda.fake_device(9, 0, 114, 13000)
    assert c.tuner_pack_check(pack, 0) == native.OTHER_CARD
    c.tuner_pack_close(pack)


def test_what_was_refused_is_told_until_it_is_reset(recorder: Recorder, tmp_path: Path) -> None:
    with prepared(recorder, make_attention(d_out=512), tmp_path) as one:
        refusal = native.AttentionRefusal()

        def said() -> tuple[int, ...]:
            status = one.c.tuner_attention_refused(one.attention, STREAM, ctypes.byref(refusal))
            return (status, refusal.kind, refusal.sequence, refusal.value, refusal.end)

        assert said() == (native.OK, 0, 0, 0, 0)
        words = one.memory.address + one.program.refused_offset
        ctypes.memmove(words, struct.pack("<4i", 1, 3, 900, 701), 16)
        assert said() == (native.ABORTED, 1, 3, 900, 701)
        one.checked(one.c.tuner_attention_reset(one.attention, STREAM))
        assert said() == (native.OK, 0, 0, 0, 0)
        abort = one.program.parts[1].abort_offset
        assert abort is not None
        ctypes.memmove(one.memory.address + abort, struct.pack("<i", 1), 4)
        assert said()[:2] == (native.ABORTED, -1)


@pytest.mark.parametrize(
    ("asked", "changed", "sentence"),
    [
        ({}, {"keys": 0}, "keys is null, and the kernel needs it"),
        ({}, {"q": 0x10008}, "q is not aligned to 16 bytes"),
        ({}, {"num_pages": 5}, "the cache has no pages: num_pages must be 0"),
        ({"form": {"page_tokens": 16}}, {"num_pages": 0}, "num_pages must be 1 to 2147483647"),
        ({"form": {"page_tokens": 16}}, {"pages": 0}, "pages is null"),
        ({"d_out": 512}, {"w": 0}, "w is null"),
    ],
)
def test_a_launch_of_wrong_tensors_is_refused(
    recorder: Recorder, tmp_path: Path, asked: dict[str, Any], changed: dict[str, int], sentence: str
) -> None:
    with prepared(recorder, make_attention(**asked), tmp_path) as one:
        recorder.clear()
        with pytest.raises(RuntimeFailure, match=sentence):
            one.launch(**changed)
        assert recorder.calls("cuLaunchKernelEx") == []


def test_a_simulated_attention_and_a_failed_call_leave_nothing_behind(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="this kernel was simulated"):
        Prepared(recorder, make_attention(simulated=True), tmp_path / "simulated.tunerpack")
    recorder.clear()
    recorder.fail("cuMemcpyHtoDAsync_v2", 700)
    with pytest.raises(RuntimeFailure, match="cuMemcpyHtoDAsync failed"):
        Prepared(recorder, make_attention(d_out=512), tmp_path / "failed.tunerpack")
    assert len(recorder.calls("cuModuleLoadData")) == len(recorder.calls("cuModuleUnload")) == 2
