"""A layer on a card: the kernel that rotates and writes to the cache, in front of attention on either side.

Ours and the library's get the same kernel, since a library's user has one of the same kind. It is launched
programmatically where our launches are. Queries and the last tokens of every cache are what it leaves, in checks too:
so what is checked is the layer from qkv on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.errors import WorkerError
from tuner.workers.gpu.algorithms import pick_algorithms
from tuner.workers.gpu.attention_data import AttentionAddresses, AttentionData, WithAttentions
from tuner.workers.gpu.attention_launch import AttentionRunner
from tuner.workers.gpu.attention_library import AttentionLibrary
from tuner.workers.gpu.baselines import Runner, runner_of
from tuner.workers.gpu.check import check_numbers
from tuner.workers.gpu.compare import Comparer
from tuner.workers.gpu.cublaslt import CublasLt
from tuner.workers.gpu.data import from_bits
from tuner.workers.gpu.launch import check, launch_config, programmatic_attribute
from tuner.workers.gpu.problem_on_card import ProblemOnCard
from tuner.workers.gpu.products_behind import stream_at
from tuner.workers.gpu.session import Kernels
from tuner.workers.gpu.squares import InputSquares
from tuner.workers.gpu.timing import Timer
from tuner.workers.protocol.messages import Work
from tuner.workers.protocol.stopwatch import Stopwatch
from tuner.workers.source.append import (
    APPEND_KERNEL,
    APPEND_THREADS,
    AppendBuffers,
    append_ctas,
    pack_append_args,
    qkv_columns,
)
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.timing.clocks import drop_reasons
from tuner.workers.timing.rounds import MIN_KEPT

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Of Llama 3: a pair's radians a token are this to the power of -2 pair / head_dim.
ROPE_THETA = 500_000.0
#: ||what the kernel in front leaves - float64|| / ||float64||, at most: one rounding, and angles in fp32.
APPEND_BAR = 0.004
#: Enqueues what runs in front of the attention whose queries lie at an address, on a stream.
InFront = Callable[[int, int], None]


class AppendOnDevice:
    """The kernel that rotates and writes to the cache."""

    def __init__(self, op: AttentionOp, cubin: bytes) -> None:
        self.op, self._cubin = op, cubin  # the driver may read it until it is unloaded
        self._function = check(
            driver.cuModuleGetFunction(check(driver.cuModuleLoadData(cubin)), APPEND_KERNEL.encode())
        )

    def launch(self, buffers: AppendBuffers, stream: int, *, programmatic: bool) -> None:
        """Enqueues one launch."""
        args = pack_append_args(self.op.shape, buffers)
        kept = ctypes.create_string_buffer(args, len(args))  # the driver copies it
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        config = launch_config(append_ctas(self.op.shape), APPEND_THREADS, 0, stream)
        config.attrs = [programmatic_attribute()] if programmatic else []
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))


class LayerData(AttentionData):
    """A problem whose queries and last tokens are what the kernel in front made of one tensor of queries, keys and
    values. Whoever launches it again over that tensor leaves the same bits."""

    def __init__(self, problem: Problem, l2_bytes: int, append: AppendOnDevice) -> None:
        """As `AttentionData`."""
        self._append = append
        pairs = np.arange(append.op.shape.head_dim // 2)
        self._frequencies = cupy.asarray((ROPE_THETA ** (-pairs / pairs.size)).astype(np.float32))
        self._qkv: Array = None
        super().__init__(problem, l2_bytes, Stopwatch())
        #: By the address of queries: their slot, None for a check's, and all addresses.
        self.places: dict[int, tuple[int | None, AttentionAddresses]] = {}
        for seed_index in range(len(self._check_inputs)):
            given = self.check_ops(seed_index).attentions[0]
            self.places[given.q] = None, given
        for slot in range(self.num_slots):
            given = self.slot_ops(slot).attentions[0]
            self.places[given.q] = slot, given

    def buffers(self, given: AttentionAddresses, qkv: int = 0) -> AppendBuffers:
        """What the kernel in front is given; `qkv` in the place of the tensor that the checks are of."""
        return AppendBuffers(
            qkv=qkv or int(self._qkv.data.ptr),
            frequencies=int(self._frequencies.data.ptr),
            q=given.q,
            keys=given.keys,
            values=given.values,
            lengths=given.lengths,
        )

    def append_error(self) -> float:
        """Of slot 0, how far queries, and keys and values of the last tokens, lie from float64."""
        op, shape, inputs = self.attention, self.attention.shape, self._inputs[0]
        rows = self._wide(self._qkv).reshape(shape.sequences, shape.new_tokens, -1, shape.head_dim)
        first = shape.max_length - shape.new_tokens
        angles = (first + cupy.arange(shape.new_tokens))[:, None] * self._frequencies.astype(cupy.float64)
        cosines, sines = cupy.cos(angles)[None, :, None], cupy.sin(angles)[None, :, None]
        x, y = rows[..., : shape.head_dim // 2], rows[..., shape.head_dim // 2 :]
        turned = cupy.concatenate([x * cosines - y * sines, y * cosines + x * sines], axis=-1)
        queries = shape.kv_heads * shape.query_heads
        keys, values, _ = op.operands[:3]
        pairs = [(self._wide(inputs[op.source]).reshape(turned[:, :, :queries].shape), turned[:, :, :queries])]
        for name, wanted in ((keys, turned[:, :, queries : -shape.kv_heads]), (values, rows[:, :, -shape.kv_heads :])):
            pairs.append((self._wide(inputs[name])[:, :, first:].transpose(0, 2, 1, 3), wanted))
        errors = [float(cupy.sqrt(((a - b) ** 2).sum() / (b**2).sum())) for a, b in pairs]
        return max(errors, key=lambda error: (error != error, error))

    def _wide(self, bits: Array) -> Array:
        return from_bits(bits, self.workload.dtype, as_type=cupy.float64)

    def _inputs_at(self, lengths: tuple[int, ...], cache: dict[str, Array]) -> dict[str, Array]:
        found = super()._inputs_at(lengths, cache)
        op = self.attention
        if self._qkv is None:
            self._qkv = self._draw((op.m, qkv_columns(op.shape)), 1.0)
        q, keys, values, at = (int(found[name].data.ptr) for name in (op.source, *op.operands[:3]))
        given = AttentionAddresses(q=q, keys=keys, values=values, lengths=at, out=0)
        self._append.launch(self.buffers(given), 0, programmatic=False)
        return found


class Behind:
    """Our launches behind what runs in front of them; a `Runner`."""

    def __init__(self, data: LayerData, in_front: InFront, inner: Runner) -> None:
        self._data, self._in_front, self._inner = data, in_front, inner

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues all of it."""
        assert isinstance(ops, WithAttentions)
        self._in_front(ops.attentions[0].q, stream)
        self._inner.enqueue(ops, stream)

    def abort_record(self) -> str | None:
        """Of the launches behind."""
        return self._inner.abort_record()

    def overwritten(self) -> str:
        """Of the launches behind."""
        return self._inner.overwritten()

    def poison(self) -> None:
        """Of the launches behind."""
        self._inner.poison()


class LibraryBehind(AttentionLibrary):
    """The library's attention and products behind what runs in front of them."""

    def __init__(self, lt: CublasLt, data: LayerData, tools: Any, in_front: InFront) -> None:
        self._in_front = in_front
        super().__init__(lt, data, tools)

    def _attend(self, tensors: tuple[Any, Any, Any], mask: Any, backends: tuple[str, ...] = ()) -> Any:
        self._in_front(tensors[0].data_ptr(), self._torch.cuda.current_stream().cuda_stream)
        return super()._attend(tensors, mask, backends)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of ours to run a layer: what is launched of each part, the attention's the last one."""

    name: str
    works: tuple[Work, ...]


class LayerOnCard:
    """A layer's parts on the card: products in front where a rank begins with qkv, and what begins with attention."""

    def __init__(self, problems: Sequence[Problem], tools_cubin: bytes, append_cubin: bytes) -> None:
        """`problems` of the parts, cold and in burst; the last one has the attention."""
        self._tools = cupy.cuda.function.Module()
        self._tools.load(tools_cubin)
        lt = CublasLt()
        *before, problem = problems
        self._before = [ProblemOnCard(one, self._tools, lt, None) for one in before]
        self._append = AppendOnDevice(problem.workload.attentions[0], append_cubin)
        l2_bytes = int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"])
        self.data = LayerData(problem, l2_bytes, self._append)
        self.timer = Timer(self.data, self._tools, None)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        if (error := self.data.append_error()) > APPEND_BAR:
            raise WorkerError(f"what is in front of the attention leaves {error:.4f} of another result")
        self.library = LibraryBehind(lt, self.data, self._tools, self._library_in_front)
        self.picked = pick_algorithms(self.library, self.timer)

    def checked(self, way: Way, kernels: Kernels) -> tuple[Runner, Runner, float]:
        """A way of ours and the same without the kernel in front of the attention, and its relative error.

        Raises:
            WrongNumbers, Aborted, LaunchRefused: it is not to be timed.
        """
        *before, work = way.works
        runners, worst = [], 0.0
        for prepared, one in zip(self._before, before, strict=True):
            runner = runner_of(one, kernels.load(one), input_squares=prepared.input_squares)
            run = partial(prepared.run_once, runner)
            worst = max(worst, check_numbers(prepared.data, prepared.comparer, run, one))
            runners.append(runner)
        squares = InputSquares(self.data.workload, self._tools.get_function("tuner_squares"))
        products = runner_of(work, kernels.load(work), input_squares=squares) if work.launchable else None
        inner = AttentionRunner(kernels.load_attentions(work), products)
        is_programmatic = work.plan_kind.is_programmatic
        whole = Behind(self.data, partial(self._in_front, runners, is_programmatic, True), inner)
        worst = max(worst, check_numbers(self.data, Comparer(self._tools), partial(self._run_once, whole), work))
        return whole, Behind(self.data, partial(self._in_front, runners, is_programmatic, False), inner), worst

    def check_library(self) -> float:
        """The relative error of the library's layer.

        Raises:
            WrongNumbers: it computes something else.
        """
        work = Work(plan_kind=PlanKind.LIBRARY)
        return check_numbers(self.data, Comparer(self._tools), partial(self._run_once, self.library), work)

    def times_us(self, runners: Sequence[Runner], num_rounds: int) -> tuple[list[list[float]], int]:
        """[runner][round] of the rounds that count, all in turns, and how many do not count."""
        graphs = [self.timer.capture(runner) for runner in runners]
        tracks = self.timer.rounds(graphs, lambda tracks, _: len(tracks[0]) >= num_rounds)
        reasons = drop_reasons(tracks, self.data.problem.objective.regime)
        kept = [i for i, reason in enumerate(reasons) if reason is None]
        if len(kept) < min(MIN_KEPT, num_rounds):
            kept = list(range(len(reasons)))
        return [[track[i].time_us for i in kept] for track in tracks], len(reasons) - len(kept)

    def _run_once(self, runner: Runner, ops: tuple[OpBuffers, ...]) -> str | None:
        runner.poison()
        cupy.cuda.Device().synchronize()  # the poison is on another stream
        with self._stream:
            runner.enqueue(ops, self._stream.ptr)
        self._stream.synchronize()
        return runner.abort_record()

    def _in_front(self, runners: Sequence[Runner], is_programmatic: bool, appends: bool, q: int, stream: int) -> None:
        """What runs in front of the attention whose queries lie at `q`; of a check no products do."""
        slot, given = self.data.places[q]
        qkv = 0
        if slot is not None:
            for prepared, runner in zip(self._before, runners, strict=True):
                ops = prepared.data.slot_ops(slot)
                runner.enqueue(ops, stream)
                qkv = ops[-1].c
        if appends:
            self._append.launch(self.data.buffers(given, qkv), stream, programmatic=is_programmatic)

    def _library_in_front(self, q: int, stream: int) -> None:
        with stream_at(stream) if stream else cupy.cuda.Stream.null:
            self._in_front([one.library for one in self._before], False, True, q, stream)
