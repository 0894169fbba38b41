"""The driver's readings of one card while a process works on it, by NVML; and a check that the card works."""

from __future__ import annotations

import os
from typing import Any

import cupy
import numpy as np
import pynvml

from ...protocol.card_health import CardCheck, Neighbourhood, num_foreign, trouble

#: SM clock cycles of one load of the clock check: 10 ms at 2 GHz.
_LOAD_CYCLES = 20_000_000
#: Number of loads after which the clock is considered final; a card speeds up within the first few.
_MAX_LOADS = 30
_LOAD_THREADS = 256


class CardView:
    """One card, by UUID."""

    def __init__(self, uuid: str) -> None:
        """Creates no CUDA context."""
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._pids_before = self._pids()
        self._used_before_bytes = self.used_bytes()
        self._at_start: Neighbourhood | None = None

    def remember_own(self) -> None:
        """Must be called when this process has created its context and allocated little else."""
        self._at_start = Neighbourhood(
            own_pid=os.getpid(),
            pids_before=self._pids_before,
            pids_after=self._pids(),
            used_before_bytes=self._used_before_bytes,
            used_after_bytes=self.used_bytes(),
        )
        self._pool_bytes = cupy.get_default_memory_pool().total_bytes()

    def num_foreign(self) -> int:
        """Compute processes on the card other than this one, as far as the driver shows."""
        assert self._at_start is not None
        growth_bytes = cupy.get_default_memory_pool().total_bytes() - self._pool_bytes
        return num_foreign(self._at_start, self._pids(), self.used_bytes(), growth_bytes)

    def used_bytes(self) -> int:
        """Memory in use by any process; 0 if the driver does not report it."""
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2).used)
        except pynvml.NVMLError:
            return 0

    def max_clock_mhz(self) -> int:
        """Maximum SM clock; 0 if the driver does not report it."""
        try:
            return int(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM))
        except pynvml.NVMLError:
            return 0

    def clock_event_bits(self) -> int:
        """Why the clocks have their current values; 0 if the driver does not report it."""
        try:
            return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except pynvml.NVMLError:
            return 0

    def energy_mj(self) -> float | None:
        """Energy that the card has used since the driver was loaded; None if the driver does not report it."""
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except pynvml.NVMLError:
            return None

    def _pids(self) -> frozenset[int]:
        try:
            return frozenset(int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        except pynvml.NVMLError:
            return frozenset()


def card_trouble(view: CardView, tools: Any, seed: int) -> str:
    """Why the card cannot be used for measurements; empty if it can. `tools` is the module of tools.cu."""
    is_right = _gives_right_numbers(tools, seed)
    max_clock_mhz = view.max_clock_mhz()
    found = ""
    for _ in range(_MAX_LOADS):
        found = trouble(
            CardCheck(
                is_right=is_right,
                clock_mhz=_clock_under_load_mhz(tools),
                max_clock_mhz=max_clock_mhz,
                clock_event_bits=view.clock_event_bits(),
            )
        )
        if not found:
            break
    return found


def _gives_right_numbers(tools: Any, seed: int) -> bool:
    """Whether the known-good kernel computes the right numbers."""
    count = 1 << 16
    out = cupy.empty(count, dtype=cupy.uint32)
    tools.get_function("tuner_probe")((count // 256,), (256,), (out, cupy.uint32(count), cupy.uint32(seed)))
    return bool((out.get() == 3 * np.arange(count, dtype=np.uint32) + np.uint32(seed)).all())


def _clock_under_load_mhz(tools: Any) -> float:
    """The SM clock while every SM spins: the requested cycles divided by the time that they took."""
    num_sms = int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["multiProcessorCount"])
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    tools.get_function("tuner_delay")((num_sms,), (_LOAD_THREADS,), (cupy.int64(_LOAD_CYCLES),))
    end.record()
    end.synchronize()
    return _LOAD_CYCLES / (1e3 * float(cupy.cuda.get_elapsed_time(begin, end)))
