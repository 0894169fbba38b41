"""An attention from a pack on a GPU, run by the C runtime: results against float64, graphs, and refusals."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attention_packs import schedule_of
from tests.support.attentions import attention
from tests.support.emulated.attention import EmulatedAttention
from tests.support.emulated.chain import from_bits, to_bits
from tests.support.packs_on_card import attention_on_card
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.ops.attention.schedule import AttentionEngine
from tuner.packs.contents import Entry, Rung
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.workers.builder.nvrtc import Builder

cupy = pytest.importorskip("cupy")

LENGTHS = (700, 0, 1, 333)
CASES: dict[str, tuple[dict[str, Any], PlanKind]] = {
    "alone": ({}, PlanKind.TWO_LAUNCHES_PDL),
    "pages": ({"form": {"page_tokens": 16}, "new_tokens": 2}, PlanKind.TWO_LAUNCHES_PDL),
    "with its projection": ({"d_out": 512}, PlanKind.TWO_LAUNCHES_PDL),
    "pages, a projection, plainly": (
        {"d_out": 512, "form": {"page_tokens": 64, "heads_first": False, "window": 100}},
        PlanKind.TWO_LAUNCHES,
    ),
    "by cp.async, pages, a projection": (
        {"by": AttentionEngine.MMA, "d_out": 512, "form": {"page_tokens": 16}},
        PlanKind.TWO_LAUNCHES_PDL,
    ),
}


class OnCard:
    """A pack's attention with its device tensors, through the C ABI."""

    def __init__(self, builder: Builder, gpu: Gpu, folder: Path, asked: dict[str, Any], kind: PlanKind) -> None:
        by, sizes = asked.get("by", AttentionEngine.TMA), {name: one for name, one in asked.items() if name != "by"}
        workload = attention(**sizes)
        op = workload.launch_ops[0]
        candidate = Candidate(plan_kind=kind, schedule=schedule_of(workload, engine=Engine.SIMT, by=by))
        cupy.zeros(1)  # a context
        kernel = attention_on_card(builder, gpu, workload, candidate)
        sizes = {"m_lo": op.shape.sequences, "m_hi": op.shape.sequences, "max_length": op.shape.max_length}
        write_pack([Entry(shape=kernel.shape, rungs=(Rung(**sizes, kernel=kernel),))], folder / "a.tunerpack")
        self.c, self.pack, self.handle = native.library(), ctypes.c_void_p(), ctypes.c_void_p()
        self.checked(self.c.tuner_pack_open(str(folder / "a.tunerpack").encode(), ctypes.byref(self.pack)))
        assert self.checked(self.c.tuner_pack_check(self.pack, 0)) == native.OK
        found, choice = native.AttentionShape(), native.AttentionChoice()
        self.checked(self.c.tuner_pack_attention(self.pack, 0, ctypes.byref(found), None))
        assert self.c.tuner_attention_find(self.pack, found, op.shape.sequences, 1, ctypes.byref(choice)) == native.OK
        self.memory = cupy.full(choice.memory_bytes + 256, 0xCD, dtype=cupy.uint8)
        at = -(-self.memory.data.ptr // 256) * 256
        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        prepared = self.c.tuner_attention_prepare(self.pack, choice, at, self.stream.ptr, 4, ctypes.byref(self.handle))
        self.checked(prepared)
        self.inputs = EmulatedAttention(op=op.shape, lengths=LENGTHS, form=op.form)
        arrays = (self.inputs.q, self.inputs.k, self.inputs.v, np.array(LENGTHS, np.int32), self.inputs.pages)
        self.q, self.k, self.v, self.lengths, self.pages = (cupy.asarray(array) for array in arrays)
        columns, d_out = self.q.size // op.m, asked.get("d_out") or 0
        weights = np.random.default_rng(1).standard_normal((d_out, columns)) / columns**0.5
        self.w = cupy.asarray(to_bits(weights, op.shape.dtype))
        self.y = cupy.full((op.m + 1, d_out or columns), 0x5A5A, dtype=cupy.uint16)
        self.dtype, self.has_pages = op.shape.dtype, op.form.paged is not None
        cupy.cuda.Device().synchronize()

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def launch(self, flags: int = 0) -> None:
        given = native.AttentionTensors(
            q=self.q.data.ptr,
            keys=self.k.data.ptr,
            values=self.v.data.ptr,
            lengths=self.lengths.data.ptr,
            pages=self.pages.data.ptr if self.has_pages else 0,
            w=self.w.data.ptr if self.w.size else 0,
            y=self.y.data.ptr,
            num_pages=self.k.shape[0] if self.has_pages else 0,
        )
        self.checked(self.c.tuner_attention_launch(self.handle, given, self.stream.ptr, flags))

    def result(self) -> Any:
        """The output rows, after a check that the row after the last is unchanged."""
        self.stream.synchronize()
        bits = self.y.get()
        assert (bits[-1] == 0x5A5A).all()
        return bits[:-1]

    def expected(self) -> Any:
        """The float64 reference; the attended rows are rounded between the ops as the kernel does."""
        rows = self.inputs.expected().reshape(self.q.shape[0] * self.q.shape[1], -1)
        if not self.w.size:
            return rows
        rounded = from_bits(to_bits(rows, self.dtype), self.dtype)
        return rounded @ from_bits(self.w.get(), self.dtype).T

    def refused(self) -> tuple[int, ...]:
        found = native.AttentionRefusal()
        status = self.c.tuner_attention_refused(self.handle, self.stream.ptr, ctypes.byref(found))
        return (status, found.kind, found.sequence, found.value, found.end)

    def close(self) -> None:
        self.stream.synchronize()
        self.c.tuner_attention_release(self.handle)
        self.c.tuner_pack_close(self.pack)


@pytest.mark.parametrize("name", CASES)
def test_a_packs_attention_is_right_by_the_c_runtime(builder: Builder, gpu: Gpu, tmp_path: Path, name: str) -> None:
    if gpu.compute_capability != (9, 0):
        pytest.skip(f"{gpu.name} has no attention kernel")
    one = OnCard(builder, gpu, tmp_path, *CASES[name])
    one.launch()
    first, expected = one.result(), one.expected()
    error = np.linalg.norm(from_bits(first, one.dtype) - expected) / np.linalg.norm(expected)
    assert error < 1.6e-2
    for flags in (0, native.NO_PDL, 0):
        one.y[:-1] = 0x7FFF
        cupy.cuda.Device().synchronize()
        one.launch(flags)
        assert (one.result() == first).all()
    one.y[:-1] = 0x7FFF
    cupy.cuda.Device().synchronize()
    with one.stream:
        one.stream.begin_capture()
        for _ in range(3):
            one.launch()
        graph = one.stream.end_capture()
    for _ in range(20):
        graph.launch(one.stream)
    assert (one.result() == first).all()
    assert one.refused() == (native.OK, 0, 0, 0, 0)
    one.lengths[2] = 701
    cupy.cuda.Device().synchronize()
    one.launch()
    assert one.refused() == (native.ABORTED, 1, 2, 701, 701)
    one.checked(one.c.tuner_attention_reset(one.handle, one.stream.ptr))
    one.lengths[2] = 1
    cupy.cuda.Device().synchronize()
    one.launch()
    assert (one.result() == first).all()
    assert one.refused()[0] == native.OK
    one.close()
