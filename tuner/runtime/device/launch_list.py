"""The launches of one call: whether they fit on the device, and whether all of them were enqueued."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.runtime.binding.native import NEEDS_RESET, RuntimeFailure
from tuner.runtime.device.driver import Driver, Launch


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a launch needs from the device at the same time."""

    function: ctypes.c_void_p
    #: CTAs of the grid, and of a cluster; threads of a CTA.
    grid: int
    cluster: int
    threads: int
    dynamic_smem_bytes: int
    #: Whether every CTA must be resident at once; otherwise one cluster must.
    needs_all_ctas: bool

    @classmethod
    def by(cls, function: ctypes.c_void_p, recipe: Mapping[str, Any]) -> Needed:
        """The needs of a launch from a manifest."""
        return cls(
            function=function,
            grid=recipe["grid"][0],
            cluster=recipe["cluster"][0],
            threads=recipe["block"][0],
            dynamic_smem_bytes=recipe["dynamic_smem_bytes"],
            needs_all_ctas=recipe.get("needs_all_ctas", False),
        )

    @property
    def is_asked(self) -> bool:
        """Whether the launch may not fit on a device although one of its CTAs does."""
        return self.needs_all_ctas or self.cluster > 1

    def check(self, cuda: Driver, stream: int) -> None:
        """Checks that it fits on the stream's SMs.

        Raises:
            RuntimeFailure: it does not fit.
        """
        if problem := self.problem(cuda, stream):
            raise RuntimeFailure(-1, f"{problem}: use the library")

    def problem(self, cuda: Driver, stream: int) -> str:
        """Why the launch does not fit on the stream's SMs; empty if it does."""
        num_sms, of_device = cuda.num_sms(stream)
        held = num_sms * cuda.ctas_per_sm(self.function, self.threads, self.dynamic_smem_bytes)
        if self.cluster > 1:  # CTAs of a cluster share a GPC, so fewer may fit; only the driver knows how many
            shape = (self.grid, self.threads, self.dynamic_smem_bytes)
            held = self.cluster * min(held // self.cluster, cuda.max_clusters(self.function, *shape, stream))
        if held >= (self.grid if self.needs_all_ctas else self.cluster):
            return ""
        whole = num_sms == of_device
        where = "this device holds" if whole else f"the {num_sms} SMs of this stream's context hold"
        needs = (
            f"needs its {self.grid} CTAs resident at once" if self.needs_all_ctas else f"has a grid of {self.grid} CTAs"
        )
        clusters = f" in clusters of {self.cluster}" if self.cluster > 1 else ""
        return f"the kernel {needs}{clusters}, and {where} {held}"


class LaunchList:
    """The state that an artifact's launches leave for its next call."""

    def __init__(self, cuda: Driver) -> None:
        self._cuda = cuda
        self._needed: list[Needed] = []
        #: Whether only some launches of a call were enqueued.
        self.needs_reset = False
        self._stream_id: int | None = None

    def add(self, needed: Needed) -> None:
        """Adds a launch that is part of all calls.

        Raises:
            RuntimeFailure: it does not fit in the current context.
        """
        if needed.is_asked:
            needed.check(self._cuda, 0)
            self._needed.append(needed)

    def holds(self, needed: Iterable[Needed]) -> bool:
        """Whether launches that were not added fit in the current context."""
        return not any(one.is_asked and one.problem(self._cuda, 0) for one in needed)

    def enqueue(self, launches: Sequence[Launch], stream: int, *, no_pdl: bool) -> None:
        """Enqueues all of them in order.

        Raises:
            RuntimeFailure: an earlier call was only partly enqueued, the stream has too few SMs, or the driver refuses.
        """
        if self.needs_reset:
            sentence = "an earlier call enqueued only some of its launches: reset the artifact first"
            raise RuntimeFailure(NEEDS_RESET, sentence)
        if self._needed:
            self._check(stream)
        for count, launch in enumerate(launches):
            try:
                launch.enqueue(stream, no_pdl=no_pdl)
            except RuntimeFailure as error:
                if count == 0:
                    raise
                self.needs_reset = True
                done = f"{count} of {len(launches)} launches were enqueued"
                remedy = (
                    "reset the artifact before the next call, and do not use a graph that was captured in the meantime"
                )
                raise RuntimeFailure(error.status, f"{error}; {done}: {remedy}") from error

    def _check(self, stream: int) -> None:
        """Checks that they fit, unless the stream is that of the previous call. The SMs of a graph are unknown, and
        querying the stream's id would end the capture.
        """
        if self._cuda.is_capturing(stream) or (found := self._cuda.stream_id(stream)) == self._stream_id:
            return
        for needed in self._needed:
            needed.check(self._cuda, stream)
        self._stream_id = found


class Launches:
    """An artifact's launches with given tensors."""

    def __init__(self, launches: list[Launch], kept: Mapping[str, Any], of: LaunchList) -> None:
        """`kept` are the arrays, which stay alive with this object; `of` is the artifact's state."""
        self._launches, self._kept, self._list = launches, dict(kept), of

    def without_arrays(self) -> Launches:
        """The same launches without keeping the arrays alive: the caller is responsible for that."""
        return Launches(self._launches, {}, self._list)

    def enqueue(self, stream: int, *, no_pdl: bool = False) -> None:
        """Enqueues all of them in order on a stream, given by its address; does not wait, and may be captured.
        `no_pdl`: as normal launches, each of which begins when everything before it in the stream has ended; those
        whose CTAs must be resident at once are then cooperative.

        Raises:
            RuntimeFailure: the stream has too few SMs, or the driver refuses. If that happened after some of the
                launches, or in an earlier call, the artifact must be reset first.
        """
        self._list.enqueue(self._launches, stream, no_pdl=no_pdl)
