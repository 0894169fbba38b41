"""A launch op computed by a vendor library, and a workload's chain of these with the library's products between them.

A kind defines what is available in its folder ``card`` (`CardOfLaunchOp`). Its calls are captured in the graphs that
time the library.
"""

from __future__ import annotations

import contextlib
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import cupy

from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.proof.launch_order import in_launch_order
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.errors import WorkerError

from ...timing.library_choice import Picked
from ..tensors.data import ProblemData
from ..tensors.op_data import Arrays, OpData, RunOperands
from .baseline import Library
from .vendor import Vendor


class OpLibrary(ABC):
    """The library's side of one launch op."""

    #: Number of ways to choose from.
    num_choices: int = 1
    #: Which of them is used.
    choice: int = 0

    @abstractmethod
    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """One run over a run's arrays, which receive the results; `stream` is CuPy's current one."""

    @abstractmethod
    def recipe(self) -> str:
        """How this calls the library, as text."""

    def poison(self) -> None:  # noqa: B027  # most have no memory of their own
        """Sets to NaN all of its own memory that a run must write before reading it."""


class CardOfLaunchOp(Protocol):
    """The folder ``card`` of a kind of launch op. It may import packages that are only on the card's machine."""

    def baseline_of(self, op: Any, data: Any, slots: list[Arrays], vendor: Any, tools: Any) -> OpLibrary:
        """The baseline: `data` has the op's tensors (`OpData`), `slots` the arrays of each timed run, `vendor` is
        the library of products (`Vendor`) and `tools` the module of `tools_source`."""

    def data_of(self, workload: Workload, op: Any, seed: int) -> OpData:
        """The op's tensors, if the kind does not use `OpData`."""


class TorchOpLibrary(OpLibrary):
    """A library whose calls only PyTorch can capture."""

    @abstractmethod
    def captured(self, arrays: Arrays) -> Callable[[], Any]:
        """A function that enqueues one timed run over these arrays on PyTorch's current stream, and returns a tensor
        with the results. All memory that it needs is allocated here, since a capture may not allocate."""


class ChainLibrary:
    """All ops of a workload computed by libraries, one after the other; a `Runner`."""

    #: Ops that read each other do not run side by side.
    can_run_beside = False

    def __init__(self, vendor: Vendor, data: ProblemData, own: Sequence[OpLibrary], tools: Any) -> None:
        """`own` is the library of each launch op.

        Raises:
            WorkerError: the library has no algorithm, or an op does not read the tensor whose norm it uses.
        """
        self._data, self._version, self._own = data, vendor.version, tuple(own)
        self._products = vendor.tile_library(data, tools) if data.workload.tile_ops else None
        ops = range(len(data.workload.tile_ops))
        #: The index of a tile op, or a launch op's library.
        self._order: list[tuple[int, int | OpLibrary]] = in_launch_order(
            data.workload, (((op,), op) for op in ops), self._own
        )

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Number of choices for each tile op, then for each launch op."""
        return (*(self._products.num_algorithms if self._products else ()), *(one.num_choices for one in self._own))

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""
        return self._products is not None and self._products.can_add_in_norms

    @property
    def choices(self) -> tuple[int, ...]:
        """The choice for each tile op, then for each launch op."""
        return (*(self._products.choices if self._products else ()), *(one.choice for one in self._own))

    @choices.setter
    def choices(self, choices: tuple[int, ...]) -> None:
        count = len(choices) - len(self._own)
        if self._products:
            self._products.choices = choices[:count]
        for one, choice in zip(self._own, choices[count:], strict=True):
            one.choice = choice

    def use(self, picked: Picked) -> None:
        """Makes later runs use this choice."""
        if self._products:
            self._products.use(replace(picked, choices=picked.choices[: -len(self._own)]))
        self.choices = picked.choices

    def recipe(self) -> LibraryRecipe:
        """How the libraries are called."""
        calls = self._products.recipe().calls if self._products else ()
        own = "; ".join(dict.fromkeys(one.recipe() for one in self._own))
        return LibraryRecipe(cublaslt_version=self._version, beside=False, calls=calls, launch_ops=own)

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues one run, whose results are in the problem's outputs."""
        with stream_at(stream):
            for _, one in self._order:
                if isinstance(one, OpLibrary):
                    one.enqueue(ops.arrays, stream)
                else:
                    assert self._products is not None
                    self._products.enqueue_some(tuple(ops), stream, one, one + 1)

    def abort_record(self) -> str | None:
        """None: libraries never wait."""
        return None

    def overwritten(self) -> str:
        """Empty: they have no private memory that must not be overwritten."""
        return ""

    def poison(self) -> None:
        """Sets the tensors between the ops to NaN."""
        for one in self._own:
            one.poison()
        if self._products:
            self._products.poison()


class TorchChainLibrary(ChainLibrary):
    """A chain with an op that only PyTorch can capture."""

    def captured(self) -> TorchGraph:
        """A chain of runs over the slots. PyTorch allocates the outputs of its calls: products read them there, and
        other launch ops read a copy."""
        import torch

        data = self._data
        slots = [data.slot_ops(slot) for slot in range(data.num_slots)]
        made = [
            {
                number: one.captured(ops.arrays)
                for number, (_, one) in enumerate(self._order)
                if isinstance(one, TorchOpLibrary)
            }
            for ops in slots
        ]
        run = partial(self._run_captured, torch, slots, made)
        return TorchGraph(torch, [partial(run, slot) for slot in range(data.chain_length)], kept=made)

    def _run_captured(
        self, torch: Any, slots: Sequence[RunOperands], made: Sequence[dict[int, Callable[[], Any]]], slot: int
    ) -> Any:
        index, kept, results = slot % len(slots), list[Any](), dict[str, int]()
        given, stream = slots[index], torch.cuda.current_stream().cuda_stream
        own = {id(one): of.op for one, of in zip(self._own, self._data.own, strict=True)}
        for number, (_, one) in enumerate(self._order):
            if isinstance(one, int):
                assert self._products is not None
                source = self._data.workload.tile_ops[one].source
                ops = list(given)
                if source in results:
                    ops[one] = replace(ops[one], a=results[source])
                with stream_at(stream):
                    self._products.enqueue_some(tuple(ops), stream, one, one + 1)
                continue
            if not isinstance(one, TorchOpLibrary):
                with stream_at(stream):
                    one.enqueue(given.arrays, stream)
                continue
            found, op = made[index][number](), own[id(one)]
            if any(op.name in other.read_names for other in self._data.workload.ops):
                found = found.contiguous()
            kept.append(found)
            results[op.name] = found.data_ptr()
            if any(op.name in of.read_from_ops for of in self._data.own):
                out = given.arrays[op.name]
                cupy.cuda.runtime.memcpyAsync(out.data.ptr, found.data_ptr(), out.nbytes, 3, stream)
        return kept


def library_of(vendor: Vendor, data: ProblemData, tools: Any) -> Library:
    """The library's best implementation of a workload.

    Raises:
        WorkerError: no library is known for the kind of a launch op.
    """
    if not data.own:
        return vendor.tile_library(data, tools)
    own = own_libraries(vendor, data, tools)
    chain = TorchChainLibrary if any(isinstance(one, TorchOpLibrary) for one in own) else ChainLibrary
    return chain(vendor, data, own, tools)


def own_libraries(vendor: Vendor, data: ProblemData, tools: Any) -> list[OpLibrary]:
    """The libraries of each launch op of a problem.

    Raises:
        WorkerError: no library is known for the kind of one of them.
    """
    slots = [data.slot_ops(slot).arrays for slot in range(data.num_slots)]
    return [_of(one, slots, vendor, tools) for one in data.own]


def _of(data: OpData, slots: list[Arrays], vendor: Vendor, tools: Any) -> OpLibrary:
    card = part_of(data.op.KIND, "card")
    if card is None or not hasattr(card, "baseline_of"):
        raise WorkerError(f"{data.op.describe()}: no library on this machine computes such an op on a card")
    made: OpLibrary = card.baseline_of(data.op, data, slots, vendor, tools)
    return made


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Garbage is collected first: a collection that frees modules, graphs or memory would end a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TorchGraph:
    """A chain captured by PyTorch; `launch` has the same interface as a CuPy graph's, so a timer can use both in the
    same rounds.
    """

    def __init__(self, torch: Any, runs: Sequence[Callable[[], Any]], kept: Any) -> None:
        """Warms up, and captures all of `runs`; their results, and `kept`, live as long as the graph."""
        self._torch, self._read = torch, kept
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            runs[0]()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with _without_collections():
                self._graph.capture_begin()
                try:
                    self._written = [run() for run in runs]
                finally:
                    self._graph.capture_end()
        torch.cuda.synchronize()

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.ptr)):
            self._graph.replay()


@dataclass(frozen=True)
class _Address:
    """A foreign stream, in CUDA's stream protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the address."""
        return 0, self.address


def stream_at(address: int) -> Any:
    """CuPy's view of that stream. Releases that support `from_external` warn about the other way."""
    stream = cupy.cuda.Stream
    if hasattr(stream, "from_external"):
        return stream.from_external(_Address(address))
    return cupy.cuda.ExternalStream(address)
