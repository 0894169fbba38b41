"""The driver's current readings of this machine's cards, by NVML, which creates no CUDA context."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CardReading:
    """The driver's current values for a card; None if it does not report them."""

    #: ``GPU-…``.
    uuid: str
    name: str
    #: Degrees Celsius.
    temperature_c: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    #: Share of the last moments in which a kernel ran, 0 to 1.
    utilization: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None


def read_cards() -> list[CardReading]:
    """All cards that the driver lists; none if there is no driver, or no NVML."""
    if importlib.util.find_spec("pynvml") is None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_read(pynvml, handle) for handle in handles]
    except pynvml.NVMLError:
        return []


def _read(nvml: Any, handle: Any) -> CardReading:
    def asked(ask: Callable[..., Any], *args: Any) -> Any:
        try:
            return ask(handle, *args)
        except nvml.NVMLError:
            return None

    power_mw = asked(nvml.nvmlDeviceGetPowerUsage)
    limit_mw = asked(nvml.nvmlDeviceGetEnforcedPowerLimit)
    rates = asked(nvml.nvmlDeviceGetUtilizationRates)
    memory = asked(nvml.nvmlDeviceGetMemoryInfo)
    return CardReading(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        temperature_c=asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        sm_clock_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        power_w=None if power_mw is None else power_mw / 1000,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        utilization=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
    )
