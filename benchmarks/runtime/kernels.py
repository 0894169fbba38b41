"""The artifacts of winners, whose builds all start immediately."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from benchmarks.runtime.chosen import Chosen
from tests.support.packs_on_card import kernel_on_card
from tuner.core.problem.gpu import Gpu
from tuner.packs.contents import Kernel
from tuner.workers.builder.nvrtc import Builder


class Kernels:
    """Builds kernels ahead, on all cores that the builder may use."""

    def __init__(self, builder: Builder, gpu: Gpu) -> None:
        self.builder, self.gpu = builder, gpu
        self._pool = ThreadPoolExecutor()
        self._begun: dict[Chosen, Future[Kernel]] = {}

    def begin(self, chosen: Sequence[Chosen]) -> None:
        """Starts the builds that have not been started yet."""
        for one in chosen:
            if one not in self._begun:
                made = self._pool.submit(kernel_on_card, self.builder, self.gpu, one.workload, one.candidate)
                self._begun[one] = made

    def get(self, one: Chosen) -> Kernel:
        """The artifact of a kernel, with all its variants."""
        self.begin([one])
        return self._begun[one].result()

    def wait(self) -> None:
        """Waits until all builds have ended."""
        for made in self._begun.values():
            made.exception()

    def close(self) -> None:
        """Starts no more builds."""
        self._pool.shutdown(cancel_futures=True)
