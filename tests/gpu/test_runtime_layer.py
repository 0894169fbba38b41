"""A layer from a pack on a GPU, by Python, C and PyTorch's operator: results, graphs, aborts, refusals, `verify`."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.conformance.launching import OnCard
from tests.support.on_card import ATTENTION_EXAMPLE, problem
from tests.support.packs_on_card import attention_on_card
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine
from tuner.packs.contents import Entry, Rung
from tuner.packs.write import write_pack
from tuner.runtime import Layer, load
from tuner.runtime.binding import native
from tuner.workers.protocol.messages import Work

cupy = pytest.importorskip("cupy")

NUM_REPLAYS = 20
CASES: dict[str, tuple[dict[str, Any], PlanKind, tuple[int, ...]]] = {
    "qkv, attention, o_proj": ({"dtype": Dtype.BF16}, PlanKind.N_LAUNCHES_PDL, ()),
    "three new tokens, plainly": ({"sizes": {"new_tokens": 3}}, PlanKind.N_LAUNCHES, ()),
    "a block behind in one launch": ({"num_behind": 3, "dtype": Dtype.BF16}, PlanKind.RUNS, (1,)),
    "queries alone": ({"rotary": False}, PlanKind.N_LAUNCHES_PDL, ()),
    "attention last": ({"num_behind": 0}, PlanKind.TWO_LAUNCHES_PDL, ()),
    "to pages": ({"pages": {"page_tokens": 16}, "dtype": Dtype.BF16}, PlanKind.N_LAUNCHES_PDL, ()),
    "by mma, to pages, tokens first": (
        {"by": AttentionEngine.MMA, "pages": {"page_tokens": 32, "heads_first": False}},
        PlanKind.N_LAUNCHES_PDL,
        (),
    ),
}


class OnCardLayer:
    """A pack's layer, with the tensors and the float64 reference of a worker's check."""

    def __init__(self, on_card: OnCard, path: Path, asked: dict[str, Any], kind: PlanKind, starts: tuple[int, ...]):
        by = asked.get("by", AttentionEngine.TMA)
        self.workload: Workload = between(**{name: value for name, value in asked.items() if name != "by"})
        self.prepared: Any = on_card.session._prepare(problem(self.workload))
        self.data, shape = self.prepared.data, self.workload.launch_ops[0].shape
        candidate = candidate_of(self.workload, kind, starts)
        assert candidate.schedule
        attentions = tuple(replace(one, engine=by) for one in candidate.schedule.launch_ops)
        candidate = replace(candidate, schedule=candidate.schedule.but(launch_ops=attentions))
        self.kernel = attention_on_card(on_card.builder, on_card.gpu, self.workload, candidate)
        sizes: dict[str, Any] = {"m_lo": shape.sequences, "m_hi": shape.sequences, "max_length": shape.max_length}
        entry = Entry(shape=self.kernel.shape, rungs=(Rung(**sizes, kernel=self.kernel),))
        write_pack([entry], path)
        self.pack, self.sequences, self.longest = load(path), shape.sequences, shape.max_length
        assert self.pack.check(0) == ""
        layer = self.pack.layer(sequences=shape.sequences, length=1)
        assert layer is not None
        self.layer: Layer = layer
        self.stream = self.prepared.stream
        #: The tensors of a launch over the check's inputs, by the manifest's names; its outputs are those that are
        #: checked.
        self.given = dict(self.data._check_inputs[0])
        self.given |= {name: output.bits for name, output in self.data.outputs[0].items()}
        self.given |= {f"{op.name}.w": self.data._weights[0][i] for i, op in enumerate(self.workload.tile_ops)}
        self.given |= {f"{name}.frequencies": cache.frequencies for name, cache in self.data.caches.items()}
        self.given = {name: array for name, array in self.given.items() if name in layer.tensors}

    def by_python(self) -> None:
        """Runs three launches and checks all outputs, intermediates and the cache against float64."""
        from tuner.workers.gpu.tensors.check import _check_seed

        launches = self.layer.bind(self.given)

        def run(ops: Any) -> None:
            cupy.cuda.Device().synchronize()  # the NaNs are written on another stream
            for _ in range(3):
                launches.enqueue(self.stream.ptr)
            self.stream.synchronize()

        _check_seed(self.data, self.prepared.comparer, run, Work(plan_kind=PlanKind.LIBRARY), 0)
        assert self.layer.refused() == ""
        assert not self.layer.aborted()

    def poison(self) -> None:
        """Fills the outputs and the new rows of the cache with NaN."""
        self.data.poison()
        self.given[self.layer.output].fill(0x7FFF)
        cupy.cuda.Device().synchronize()

    def left(self) -> list[Any]:
        """Copies of the last op's output and of the caches."""
        cupy.cuda.Device().synchronize()
        return [self.given[name].copy() for name in (self.layer.output, "attention.keys", "attention.values")]


class InC:
    """The same layer through the C ABI."""

    def __init__(self, one: OnCardLayer) -> None:
        self.one, self.c, self.pack = one, native.library(), one.pack.handle
        self.handle, choice = ctypes.c_void_p(), native.AttentionChoice()
        found = self.c.tuner_layer_find(self.pack, 0, one.sequences, 1, ctypes.byref(choice))
        assert self.checked(found) == native.OK
        self.memory = cupy.full(choice.memory_bytes + 256, 0xCD, dtype=cupy.uint8)
        cupy.cuda.Device().synchronize()
        at = -(-self.memory.data.ptr // 256) * 256
        self.at = at - self.memory.data.ptr
        stream = one.stream.ptr
        self.checked(self.c.tuner_layer_prepare(self.pack, choice, at, stream, 4, ctypes.byref(self.handle)))
        self.names = [name.decode() for name in self._names(choice)]
        addresses = [one.given[name].data.ptr for name in self.names]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        num_pages = one.given["attention.keys"].shape[0] if "attention.pages" in one.given else 0
        self._given = native.LayerTensors(addresses=self._addresses, num_addresses=len(addresses), num_pages=num_pages)

    def _names(self, choice: native.AttentionChoice) -> Iterator[bytes]:
        index, tensor = 0, native.LayerTensor()
        while self.c.tuner_layer_tensor_at(self.pack, choice, index, ctypes.byref(tensor)) == native.OK:
            yield tensor.name
            index += 1

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def launch(self, flags: int = 0) -> None:
        self.checked(self.c.tuner_layer_launch(self.handle, self._given, self.one.stream.ptr, flags))

    def refused(self) -> tuple[int, ...]:
        found = native.AttentionRefusal()
        status = self.checked(self.c.tuner_layer_refused(self.handle, self.one.stream.ptr, ctypes.byref(found)))
        return (status, found.kind, found.sequence, found.value, found.end)

    def reset(self) -> None:
        self.checked(self.c.tuner_layer_reset(self.handle, self.one.stream.ptr))

    def close(self) -> None:
        self.one.stream.synchronize()
        self.c.tuner_layer_release(self.handle)


@pytest.fixture(params=CASES)
def one(request: pytest.FixtureRequest, on_card: OnCard, tmp_path: Path) -> Iterator[OnCardLayer]:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)
    made = OnCardLayer(on_card, tmp_path / "layer.tunerpack", *CASES[request.param])
    yield made
    cupy.cuda.Device().synchronize()
    made.pack.close()
    on_card.session._prepared = None


def same(found: list[Any], wanted: list[Any]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(found, wanted, strict=True))


def test_a_packs_layer_is_right_by_python_and_the_c_runtime_leaves_the_same_bits(one: OnCardLayer) -> None:
    one.by_python()
    wanted = one.left()
    in_c = InC(one)
    for flags in (0, native.NO_PDL, 0):
        one.poison()
        in_c.launch(flags)
        one.stream.synchronize()
        assert same(one.left(), wanted), "different bits than from Python"
    one.poison()
    with one.stream:
        one.stream.begin_capture()
        for _ in range(3):
            in_c.launch()
        graph = one.stream.end_capture()
    for _ in range(NUM_REPLAYS):
        graph.launch(one.stream)
    one.stream.synchronize()
    assert same(one.left(), wanted)
    assert in_c.refused() == (native.OK, 0, 0, 0, 0)
    in_c.close()


def test_a_length_beyond_the_plan_and_an_abort_are_told_and_the_next_launch_is_right(one: OnCardLayer) -> None:
    in_c, lengths = InC(one), one.given["attention.lengths"]
    one.poison()
    in_c.launch()
    one.stream.synchronize()
    wanted, kept = one.left(), lengths.copy()
    if (table := one.given.get("attention.pages")) is not None:  # pages beyond all lengths do not exist
        table[...] = cupy.clip(table, 0, one.given["attention.keys"].shape[0] - 1)
    lengths[2] = one.longest + 1
    cupy.cuda.Device().synchronize()
    in_c.launch()
    end = one.longest + 1
    assert in_c.refused() == (native.ABORTED, 1, 2, end, end)
    lengths[...] = kept
    in_c.reset()
    assert in_c.refused()[0] == native.OK
    record = _abort_at(in_c, one)
    in_c.memory[record : record + 4].view(cupy.uint32)[0] = 1
    cupy.cuda.Device().synchronize()
    assert in_c.refused()[:2] == (native.ABORTED, -1)
    in_c.reset()
    one.poison()
    in_c.launch()
    one.stream.synchronize()
    assert same(one.left()[:1], wanted[:1])
    assert in_c.refused()[0] == native.OK
    in_c.close()


def _abort_at(in_c: InC, one: OnCardLayer) -> int:
    """The byte offset of the first launch's abort record in the memory's array."""
    from tuner.packs.programs import program_of

    offset = program_of(one.kernel).parts[0].abort_offset
    assert offset is not None
    return int(in_c.at + offset)


def test_the_operator_leaves_the_same_bits_and_agrees_with_pytorchs_own(one: OnCardLayer) -> None:
    torch = pytest.importorskip("torch")
    if len(one.layer.ops) == 2:
        pytest.skip("the operator has a product after its attention")
    from tuner.runtime import torch_layer

    one.by_python()
    wanted, dtype = one.left(), one.layer.artifact.manifest["workload"]["dtype"]
    of_bits = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]

    def tensor(name: str) -> Any:
        array = one.given.get(name)
        if array is None:
            return None
        if array.dtype == cupy.uint16:
            return torch.as_tensor(array.view(cupy.int16), device="cuda").view(of_bits)
        return torch.as_tensor(array, device="cuda")

    number = torch_layer.register(one.layer)
    op, turned = one.layer.ops[1], "qkv.frequencies" in one.given
    given = torch_layer.Operands(
        x=tensor("x"), squares=tensor("x.squares"), w_qkv=tensor("qkv.w"), b_qkv=None,
        frequencies=tensor("qkv.frequencies"), keys=tensor("attention.keys"), values=tensor("attention.values"),
        lengths=tensor("attention.lengths"), pages=tensor("attention.pages"), w_o=tensor("o_proj.w"),
        w_up=tensor("gate_up.w"), w_down=tensor("down.w"), eps=1e-5, residual=True,
        heads_first=op.get("heads_first", True), scale=op["head_dim"] ** -0.5, window=0, soft_cap=0.0, number=number,
    )  # fmt: skip
    bits = torch.as_tensor(wanted[0].view(cupy.int16), device="cuda")
    with torch.no_grad():
        one.poison()
        eager = torch.ops.tuner.decoder_layer(*given)
        torch.cuda.synchronize()
        assert len(one.layer._bound) == 1, "PyTorch's own operators ran instead of the kernels"
        assert torch.equal(eager.view(torch.int16), bits)
        assert same(one.left()[1:], wanted[1:])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.ops.tuner.decoder_layer(*given)
        one.poison()
        captured.fill_(float("nan"))
        for _ in range(NUM_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured.view(torch.int16), bits)
        assert same(one.left()[1:], wanted[1:])
        own = torch.ops.tuner.decoder_layer(*given._replace(squares=None))  # so the squares are computed
        caches = {name: getattr(given, name).clone() for name in ("keys", "values")}
        plain = torch_layer.by_torch(*given._replace(**caches))
        for found in (eager, own):
            error = (found.double() - plain.double()).norm() / plain.double().norm()
            assert float(error) < 1.6e-2
        for name, cache in caches.items() if turned else ():
            found, wide = (one.double().nan_to_num() for one in (getattr(given, name), cache))  # NaN if never read
            assert float((found - wide).norm() / wide.norm()) < 1e-2
    assert one.layer.refused() == ""
    torch_layer.forget(number)


def test_the_example_runs_the_files_alone_and_checks_the_cache(one: OnCardLayer, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in one.kernel.files.items():
        (folder / name).write_bytes(data)
    lengths = ",".join(map(str, (one.longest, 7, 0, one.longest - 1)))
    command = [sys.executable, str(ATTENTION_EXAMPLE), str(folder)]
    for more in ([], ["--lengths", lengths]):
        ran = subprocess.run([*command, *more], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "relative error" in ran.stdout


@pytest.mark.parametrize("one", ["qkv, attention, o_proj"], indirect=True)
def test_verify_runs_a_packs_layer_beside_the_library(one: OnCardLayer, tmp_path: Path) -> None:
    from tuner.client.commands.packs.making import opened
    from tuner.client.commands.packs.verify import run_kernels

    (found,) = run_kernels(opened((tmp_path / "layer.tunerpack").read_bytes())).values()
    assert found["reason"] == ""
    assert found["time_us"] > 1
    assert found["speedup"] > 0.2
