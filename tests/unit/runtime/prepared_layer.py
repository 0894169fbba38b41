"""A layer of a pack in the C runtime, prepared over the recorder, and its parameters as the worker packs them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.attention_packs import MadeAttention, made_of, table
from tests.support.attention_parameter import AttentionBuffers, cache_bytes, pack_attention_args, weights_at
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.unit.runtime.encoded import encoded
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.source import cache_map
from tuner.ops.gemm.op import GemmOp
from tuner.packs.programs import Part, program_of
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args
from tuner.workers.source.tensor_maps import tensor_maps

STREAM = 0x99
NUM_PAGES = 300
LAYERS: dict[str, dict[str, Any]] = {
    "qkv, attention, o_proj": {},
    "a bias and no norm": {"norm": False, "dtype": Dtype.BF16},
    "queries alone": {"rotary": False},
    "attention last": {"num_behind": 0},
    "a block behind": {"num_behind": 3},
}


def make_layer(
    kind: PlanKind = PlanKind.N_LAUNCHES_PDL,
    run_starts: tuple[int, ...] = (),
    *,
    simulated: bool = False,
    by: AttentionEngine = AttentionEngine.TMA,
    **asked: Any,
) -> MadeAttention:
    """A layer whose attention is computed by engine `by`."""
    workload = between(**asked)
    if len(workload.tile_ops) == 1:
        kind = PlanKind.TWO_LAUNCHES_PDL
    candidate = candidate_of(workload, kind, run_starts)
    assert candidate.schedule
    attentions = tuple(replace(one, engine=by) for one in candidate.schedule.launch_ops)
    candidate = replace(candidate, schedule=candidate.schedule.but(launch_ops=attentions))
    return made_of(workload, candidate, simulated=simulated)


class Prepared:
    """A layer of a pack, prepared, with an address for each of its tensors."""

    def __init__(self, recorder: Recorder, made: MadeAttention, path: Path) -> None:
        self.recorder, self.made, self.c = recorder, made, recorder.runtime
        self.pack, self.layer, self.choice = ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
        shape = made.attention.op.shape
        write_pack([table(made)], path)
        self.checked(self.c.tuner_pack_open(str(path).encode(), ctypes.byref(self.pack)))
        choice = ctypes.byref(self.choice)
        found = self.c.tuner_layer_find(self.pack, 0, shape.sequences, shape.max_length, choice)
        assert found == native.OK
        assert bytes(self.choice.digest).hex() == made.kernel.digest
        self.memory, self.program = DeviceMemory(self.choice.memory_bytes), program_of(made.kernel)
        self.tensors = [*self._tensors()]
        self.at = {name: 0x10000 * (index + 1) for index, (name, _) in enumerate(self.tensors)}
        prepared = self.c.tuner_layer_prepare(
            self.pack, self.choice, self.memory.address, 0x77, 4, ctypes.byref(self.layer)
        )
        self.checked(prepared)

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def _tensors(self) -> Iterator[tuple[str, native.LayerTensor]]:
        index, one = 0, native.LayerTensor()
        while self.checked(self.c.tuner_layer_tensor_at(self.pack, self.choice, index, ctypes.byref(one))) == native.OK:
            yield one.name.decode(), one
            index, one = index + 1, native.LayerTensor()

    def close(self) -> None:
        self.c.tuner_layer_release(self.layer)
        self.c.tuner_pack_close(self.pack)

    def launch(self, flags: int = 0, num_pages: int | None = None, count: int | None = None, **changed: int) -> None:
        addresses = list({**self.at, **changed}.values())
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        paged = NUM_PAGES if self.made.attention.op.form.paged else 0
        given = native.LayerTensors(
            addresses=array,
            num_addresses=len(addresses) if count is None else count,
            num_pages=paged if num_pages is None else num_pages,
        )
        self.checked(self.c.tuner_layer_launch(self.layer, given, STREAM, flags))

    def file(self, name: str) -> int:
        """The device address of a file of the artifact; asserts that its contents are there."""
        [fill] = [fill for fill in self.program.fills if fill.name == name]
        data = self.made.kernel.files[name]
        assert self.memory.read(fill.offset, len(data)) == data
        return self.memory.address + fill.offset

    def between(self, name: str) -> int:
        """The address of a tensor that only the launches read and write; these tensors follow each other in the
        manifest's order."""
        at, sizes = self.memory.address, {"fp32": 4}
        for tensor in self.made.kernel.manifest["tensors"]:
            if tensor["role"] in ("intermediate", "squares"):
                if tensor["name"] == name:
                    return at
                size = sizes.get(tensor["dtype"], 2)
                for extent in tensor["shape"]:
                    size *= extent
                at += -(-size // 256) * 256
        return 0

    def address(self, name: str) -> int:
        """The address of any tensor; 0 if it does not exist."""
        return self.at.get(name) or self.between(name)


@contextmanager
def prepared(recorder: Recorder, made: MadeAttention, folder: Path) -> Iterator[Prepared]:
    one = Prepared(recorder, made, folder / "layer.tunerpack")
    try:
        yield one
    finally:
        one.close()


def workers_attention(one: Prepared) -> bytes:
    """The parameter of the attention's launch, as the worker packs it."""
    kernel = one.made.attention
    recipe, op = one.made.kernel.manifest["attentions"][0], kernel.op
    workspace = one.memory.address + one.program.refused_offset - recipe["workspace"]["refused"]
    found = cache_map(op.shape, kernel.schedule.tiling_of(op.shape), op.form.paged)
    if op.form.paged:
        dims = [*found.dims]
        dims[1] = NUM_PAGES * recipe["pages"]["rows_per_page"]
        found = type(found)(**{**vars(found), "dims": tuple(dims)})
    keys, values = (one.at[f"attention.{name}"] for name in ("keys", "values"))
    reader = one.made.workload.reader_of(op)

    def of(address: int) -> bytes:
        return cache_bytes(
            found, kernel.schedule.engine, address, lambda a, at: encoded(one.recorder, a, op.shape.dtype, at)
        )

    buffers = AttentionBuffers(
        k=of(keys),
        v=of(values),
        q=one.address(op.source),
        out=one.address(op.name),
        lengths=one.at["attention.lengths"],
        pages=one.at.get("attention.pages", 0),
        tasks=one.file("attention0_tasks.bin"),
        queues=one.file("attention0_queues.bin"),
        trace=0,
        **{name: workspace + recipe["workspace"][name] for name in ("arrivals", "partials", "refused")},
    )
    weight = one.at[f"{reader.name}.w"] if reader else 0
    weights = weights_at(one.made.workload, 0, kernel.schedule, weight)
    speculative = kernel.schedule.speculative
    packed = bytearray(pack_attention_args(kernel.plan, buffers, speculative=speculative, next_weights=weights))
    if op.form.paged:
        [offset] = [field["offset"] for field in recipe["parameter"]["fields"] if field["name"] == "num_pages"]
        packed[offset : offset + 4] = struct.pack("<i", NUM_PAGES)
    return bytes(packed)


def workers_op(one: Prepared, op: GemmOp) -> OpBuffers:
    at, cache = one.address, one.made.workload.cache_name_of(op) if op.rotary else ""
    parts = {name: at(f"{cache}.{name}") for name in ("keys", "values", "lengths", "pages")}
    parts |= {"frequencies": at(f"{op.name}.frequencies")}
    parts |= {"num_pages": NUM_PAGES if one.made.attention.op.form.paged else 0}
    return OpBuffers(
        a=at(op.source),
        w=at(f"{op.name}.w"),
        bias=at(f"{op.name}.bias"),
        c=at(op.name),
        residual=at(op.residual_source or f"{op.name}.residual"),
        row_scale=at(f"{op.norm}.squares") if op.norm else at(f"{op.name}.row_scale"),
        squares=at(f"{op.name}.squares"),
        parts=parts,
        m=op.m,
        n=op.n,
        k=op.k,
    )


def workers_products(one: Prepared, part: Part, *, is_programmatic: bool) -> bytes:
    """The parameter of a launch of products."""
    index = one.made.kernel.manifest["launches"].index(part.recipe)
    plan, workload = one.made.plans[index], one.made.workload
    assert part.abort_offset is not None
    workspace = one.memory.address + part.abort_offset - part.recipe["workspace"]["abort_record"]["offset"]
    buffers = tuple(workers_op(one, op) for op in workload.tile_ops)
    args = pack_args(one.file(f"plan{index}.bin"), workspace, 55, plan, buffers, is_dependent=is_programmatic)
    recipes = tensor_maps(workload, plan.graph.tiling)
    maps = (encoded(one.recorder, r, workload.dtype, getattr(buffers[r.op], r.operand)) for r in recipes)
    return extend_args(args, first_tasks(plan), tuple(maps))
