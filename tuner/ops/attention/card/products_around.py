"""The library's products around an attention: cuBLASLt, with kernels for norms, gates and heads, as for any chain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cupy

from tuner.core.trial.library_recipe import LibraryCall
from tuner.ops.attention.card.data import AttentionData
from tuner.workers.gpu.baselines import LibraryRunner
from tuner.workers.gpu.cublaslt import CublasLt
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.timing.library_choice import Picked


class ProductsAround:
    """All of a workload's products, in front of the attention and behind it; none where it is alone."""

    def __init__(self, lt: CublasLt, data: AttentionData, tools: Any) -> None:
        """`tools` as `LibraryRunner` has them.

        Raises:
            WorkerError: the library offers no algorithm, or a norm is of what its op does not read.
        """
        self._runner = LibraryRunner(lt, data, tools) if data.workload.tile_ops else None
        self._in_front, self._attention = data.workload.tile_ops_before(data.attention), data.attention.name
        self._sources = [op.source for op in data.workload.tile_ops]

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Per product, how many the heuristic offers."""
        return self._runner.num_algorithms if self._runner else ()

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""
        return self._runner is not None and self._runner.can_add_in_norms

    @property
    def choices(self) -> tuple[int, ...]:
        """Per product, which of the heuristic's algorithms."""
        return self._runner.choices if self._runner else ()

    @choices.setter
    def choices(self, choices: tuple[int, ...]) -> None:
        if self._runner:
            self._runner.choices = choices

    def use(self, picked: Picked) -> None:
        """Runs as was picked, behind whose choices is the attention's."""
        if self._runner:
            self._runner.use(replace(picked, choices=picked.choices[:-1]))

    def calls(self) -> tuple[LibraryCall, ...]:
        """How to call the library as this does."""
        return self._runner.recipe().calls if self._runner else ()

    def enqueue_in_front(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Of one run those that the attention's operands come from, or that stand before it anyway."""
        if self._runner and self._in_front:
            with stream_at(stream):
                self._runner.enqueue_some(ops, stream, 0, self._in_front)

    def enqueue_behind(self, ops: tuple[OpBuffers, ...], attended: int, stream: int) -> None:
        """Of one run the others, which read the attention's results at that address."""
        if self._runner:
            given = [
                replace(op, a=attended) if source == self._attention else op
                for op, source in zip(ops, self._sources, strict=True)
            ]
            with stream_at(stream):
                self._runner.enqueue_some(tuple(given), stream, self._in_front, len(given))

    def poison(self) -> None:
        """What lies between the products."""
        if self._runner:
            self._runner.poison()


class WithProducts:
    """What the library's ways of an attention share: by which choices it and the products around it run."""

    _products: ProductsAround
    #: The attention's own.
    _choice: int

    @property
    def choices(self) -> tuple[int, ...]:
        """Of each tile op, and behind these of the attention."""
        return (*self._products.choices, self._choice)

    @choices.setter
    def choices(self, choices: tuple[int, ...]) -> None:
        self._products.choices, self._choice = choices[:-1], choices[-1]

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""
        return self._products.can_add_in_norms

    def use(self, picked: Picked) -> None:
        """Runs as was picked from now on."""
        self._products.use(picked)
        self._choice = picked.choices[-1]


@dataclass(frozen=True)
class _Address:
    """A stream of someone else's, by CUDA's protocol of streams."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the address."""
        return 0, self.address


def stream_at(address: int) -> Any:
    """CuPy's view of that stream. Releases that know `from_external` warn of the other way."""
    stream = cupy.cuda.Stream
    if hasattr(stream, "from_external"):
        return stream.from_external(_Address(address))
    return cupy.cuda.ExternalStream(address)
